// The part of Markdown that answers use, as DOM nodes. Text goes into text nodes, so it can't become markup; links are
// made for http and https only. An answer in progress is cut into blocks, and only those that changed are made anew.

import { button, copyText, el } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const MOST_NESTED = 8;

const isOrdered = (marker) => /\d/.test(marker);
const blank = (line) => line.trim() === "";
const startsTable = (lines, i) =>
  lines[i].includes("|") && i + 1 < lines.length && lines[i + 1].includes("-") && TABLE_RULE.test(lines[i + 1]);
const startsBlock = (lines, i) =>
  FENCE.test(lines[i]) || HEADING.test(lines[i]) || RULE.test(lines[i]) || QUOTE.test(lines[i]) ||
  ITEM.test(lines[i]) || startsTable(lines, i);

// The lines of each block: {kind, lines}.
export function blocksOf(text) {
  const lines = text.split("\n");
  const blocks = [];
  for (let i = 0; i < lines.length;) {
    if (blank(lines[i])) {
      ++i;
      continue;
    }
    const [kind, end] = blockAt(lines, i);
    blocks.push({ kind, lines: lines.slice(i, end) });
    i = end;
  }
  return blocks;
}

function blockAt(lines, i) {
  const fence = FENCE.exec(lines[i]);
  if (fence) return ["code", fenceEnd(lines, i, fence[1])];
  if (HEADING.test(lines[i])) return ["heading", i + 1];
  if (RULE.test(lines[i])) return ["rule", i + 1];
  let end = i + 1;
  if (QUOTE.test(lines[i])) {
    while (end < lines.length && QUOTE.test(lines[end])) ++end;
    return ["quote", end];
  }
  if (ITEM.test(lines[i])) return ["list", listEnd(lines, i)];
  if (startsTable(lines, i)) {
    while (end < lines.length && lines[end].includes("|")) ++end;
    return ["table", end];
  }
  while (end < lines.length && !blank(lines[end]) && !startsBlock(lines, end)) ++end;
  return ["paragraph", end];
}

// One that is not closed, as in an answer that is being written, goes on to the end.
function fenceEnd(lines, i, mark) {
  const close = new RegExp(`^ {0,3}\\${mark[0]}{${mark.length},}\\s*$`);
  for (let end = i + 1; end < lines.length; ++end) {
    if (close.test(lines[end])) return end + 1;
  }
  return lines.length;
}

// A list goes on over blank lines when an item or indented text follows.
function listEnd(lines, i) {
  const [, indent, marker] = ITEM.exec(lines[i]);
  let end = i + 1;
  for (let next = end; next < lines.length; ++next) {
    if (blank(lines[next])) continue;
    const item = RULE.test(lines[next]) ? null : ITEM.exec(lines[next]);
    if (item && item[1].length <= indent.length && isOrdered(item[2]) !== isOrdered(marker)) break;
    const goesOn = item !== null || /^\s{2,}/.test(lines[next]);
    const lazy = next === end && !startsBlock(lines, next);
    if (!goesOn && !lazy) break;
    end = next + 1;
  }
  return end;
}

function codeBlock(lines) {
  const [, mark, language] = FENCE.exec(lines[0]);
  const closed = lines.length > 1 && lines.at(-1).trim().startsWith(mark);
  const text = lines.slice(1, closed ? -1 : undefined).join("\n");
  const name = language.trim().split(/\s/)[0];
  return el("div", { className: "code" },
    el("div", { className: "code-head" }, el("span", { textContent: name || "text" }),
      button("Copy", () => copyText(text), { "aria-label": "Copy code" })),
    el("pre", { tabIndex: 0, role: "region", "aria-label": name ? `Code, ${name}` : "Code" },
      el("code", { textContent: text })));
}

function list(lines, depth) {
  const first = ITEM.exec(lines[0]);
  const indent = first[1].length;
  const ordered = isOrdered(first[2]);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= indent + 1) {
      items.push({ lines: [item[3]], width: line.length - item[3].length });
    } else if (items.length > 0) {
      const { lines: own, width } = items.at(-1);
      own.push(line.slice(Math.min(width, line.length - line.trimStart().length)));
    }
  }
  const node = el(ordered ? "ol" : "ul");
  if (ordered) node.start = parseInt(first[2], 10);
  for (const item of items) node.append(el("li", {}, ...nodesOf(item.lines.join("\n"), depth + 1, true)));
  return node;
}

const cellsOf = (line) =>
  line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.replaceAll("\\|", "|").trim());

function table(lines) {
  const head = cellsOf(lines[0]);
  const row = (tag, cells) => el("tr", {}, ...head.map((_, i) => el(tag, {}, ...inline(cells[i] ?? ""))));
  return el("div", { className: "table", tabIndex: 0, role: "region", "aria-label": "Table" },
    el("table", {}, el("thead", {}, row("th", head)),
      el("tbody", {}, ...lines.slice(2).map((line) => row("td", cellsOf(line))))));
}

function nodeOf({ kind, lines }, depth, tight) {
  switch (kind) {
    case "code":
      return [codeBlock(lines)];
    case "heading": {
      const [, marks, text] = HEADING.exec(lines[0]);
      return [el(`h${Math.min(6, marks.length + 2)}`, {}, ...inline(text))];  // h1 and h2 are the page's
    }
    case "rule":
      return [el("hr")];
    case "quote":
      return [el("blockquote", {}, ...nodesOf(lines.map((line) => line.replace(QUOTE, "")).join("\n"), depth + 1))];
    case "list":
      return [list(lines, depth)];
    case "table":
      return [table(lines)];
    default:
      return tight ? inline(lines.join("\n")) : [el("p", {}, ...inline(lines.join("\n")))];
  }
}

function nodesOf(text, depth, tight = false) {
  if (depth > MOST_NESTED) return [document.createTextNode(text)];
  const blocks = blocksOf(text);
  return blocks.flatMap((block, i) => nodeOf(block, depth, tight && i === 0));
}

// Lengths are bounded so that no text takes long.
const INLINE = new RegExp([
  /(?<ticks>`+)(?<code>[^`]|[^`][^]{0,500}?[^`])\k<ticks>(?!`)/,
  /\*\*(?<bold>(?=\S)[^]{0,500}?\S)\*\*/,
  /(?<![\w*])\*(?<italic>[^\s*](?:[^*]{0,500}[^\s*])?)\*(?![\w*])/,
  /(?<!\w)_(?<under>[^\s_](?:[^_]{0,500}[^\s_])?)_(?!\w)/,
  /~~(?<struck>(?=\S)[^]{0,500}?\S)~~/,
  /\[(?<label>[^\]\n]{1,500})\]\((?<href>https?:\/\/[^\s()<>]+)\)/,
  /(?<url>https?:\/\/[^\s<>()"'`*]*[^\s<>()"'`*.,;:!?])/,
  /\\(?<escaped>[\\`*_{}[\]()#+\-.!|~>])/,
].map((part) => part.source).join("|"), "g");

const link = (href, ...children) =>
  el("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);

export function inline(text, depth = 0) {
  const out = [];
  let at = 0;
  const deeper = (inner) => (depth < MOST_NESTED ? inline(inner, depth + 1) : [inner]);
  for (const match of text.matchAll(INLINE)) {
    const { code, bold, italic, under, struck, label, href, url, escaped } = match.groups;
    out.push(text.slice(at, match.index));
    at = match.index + match[0].length;
    if (code !== undefined) out.push(el("code", { textContent: code.replace(/^ (.+) $/, "$1") }));
    else if (bold !== undefined) out.push(el("strong", {}, ...deeper(bold)));
    else if (italic !== undefined || under !== undefined) out.push(el("em", {}, ...deeper(italic ?? under)));
    else if (struck !== undefined) out.push(el("s", {}, ...deeper(struck)));
    else if (label !== undefined) out.push(link(href, label));
    else if (url !== undefined) out.push(link(url, url));
    else out.push(escaped);
  }
  out.push(text.slice(at));
  return out.filter((part) => part !== "");
}

// A text that grows: update() renders what differs from the last time.
export class Markdown {
  #sources = [];
  #counts = [];
  node = el("div", { className: "prose" });

  update(text) {
    const blocks = blocksOf(text);
    const sources = blocks.map((block) => block.lines.join("\n"));
    let same = 0;
    while (same < sources.length && sources[same] === this.#sources[same]) ++same;
    const kept = this.#counts.slice(0, same).reduce((sum, n) => sum + n, 0);
    while (this.node.childNodes.length > kept) this.node.lastChild.remove();
    this.#counts.length = same;
    for (const block of blocks.slice(same)) {
      const nodes = nodeOf(block, 0, false);
      this.#counts.push(nodes.length);
      this.node.append(...nodes);
    }
    this.#sources = sources;
  }
}

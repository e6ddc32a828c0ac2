// Elements made from values. Text becomes text nodes only: nothing here, or in any other file, parses HTML.

export const $ = (id) => document.getElementById(id);

// `props`: on* are listeners, names with a dash and `role` attributes, the rest properties of the element.
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const button = (text, onclick, props = {}) =>
  el("button", { type: "button", textContent: text, onclick, ...props });

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;  // an equal text keeps the selection
}

// A text area as high as its text.
export function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + area.offsetHeight - area.clientHeight}px`;
}

// Enter calls `submit`; with Shift it is a new line, and within an input method's composition its own affair.
export function submitOnEnter(area, submit) {
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // no permission, or the page came over plain HTTP
    const area = el("textarea", { value: text, className: "hidden" });
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    focused?.focus();
    if (!copied) return notify("The browser did not allow copying.");
  }
  notify("Copied.");
}

// A line at the bottom for some seconds, which screen readers read out; with `undo`, a button for it.
let hideTimer = 0;
export function notify(text, undo) {
  const toast = $("toast");
  const hide = () => toast.replaceChildren();
  clearTimeout(hideTimer);
  toast.replaceChildren(el("span", { textContent: text }));
  if (undo) toast.append(button("Undo", () => { hide(); undo(); }));
  hideTimer = setTimeout(hide, undo ? 10000 : 3000);
}

// --- numbers as people read them

const grouped = new Intl.NumberFormat("en");
export const count = (n) => grouped.format(n);
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
export const percent = (part, whole) => (whole > 0 ? `${Math.round((100 * part) / whole)}%` : "–");

export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 1 : 0).replace(/\.0$/, "")} s`;
  const minutes = Math.floor(ms / 60000);
  if (minutes < 60) return `${minutes} min ${Math.floor((ms % 60000) / 1000)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

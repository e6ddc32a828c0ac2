// The shown conversation: a view for each message, made once and updated as the message grows.

import { $, button, copyText, duration, el, fit, setText, submitOnEnter } from "./dom.js";
import { Markdown } from "./markdown.js";
import { statsDetails, statsLine } from "./stats.js";

export class Transcript {
  #views = new WeakMap();
  #frame = 0;

  constructor(chat) {
    this.chat = chat;
    this.node = $("transcript");
    this.scroller = $("scroller");
    this.scroller.addEventListener("scroll", () => this.#showJump());
    $("jump").addEventListener("click", () => this.toEnd());
  }

  // The views of all messages, in order. Views of messages that are shown already keep their state.
  sync() {
    const { conversation, messages } = this.chat;
    const toEnd = this.#isAtEnd() || this.chat.isRunning() || this.shown !== conversation;
    this.shown = conversation;
    const wanted = messages.filter((message) => message.role !== "tool").map((message) => this.#viewOf(message).node);
    for (const node of [...this.node.children]) if (!wanted.includes(node)) node.remove();
    wanted.forEach((node, i) => {
      if (this.node.children[i] !== node) this.node.insertBefore(node, this.node.children[i] ?? null);
    });
    $("empty").hidden = messages.length > 0;
    messages.forEach((message, i) => this.#views.get(message)?.update(i));
    if (toEnd) this.toEnd();
    this.#showJump();
  }

  // The newest answer, at most once a frame.
  updateLast() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      const { messages } = this.chat;
      const atEnd = this.#isAtEnd();
      this.#views.get(messages.at(-1))?.update(messages.length - 1);
      if (atEnd) this.toEnd();
      this.#showJump();
    });
  }

  toEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  #viewOf(message) {
    if (!this.#views.has(message)) {
      const View = message.role === "user" ? UserView : AnswerView;
      this.#views.set(message, new View(message, this.chat));
    }
    return this.#views.get(message);
  }
  #isAtEnd() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight < 80;
  }
  #showJump() {
    $("jump").hidden = this.#isAtEnd();
  }
}

class UserView {
  constructor(message, chat) {
    Object.assign(this, { message, chat });
    this.text = el("p", { className: "said", textContent: message.content });
    this.actions = el("div", { className: "actions" },
      button("Edit", () => this.#edit()), button("Copy", () => copyText(message.content)),
      this.again = button("Send again", () => chat.regenerate(this.index + 1)),
      button("Delete", () => remove(chat, this.index)));
    this.node = el("article", { className: "message user", "aria-label": "Your message" }, this.text, this.actions);
  }

  update(index) {
    this.index = index;
    const next = this.chat.messages[index + 1];
    this.again.hidden = next?.role === "assistant" || this.chat.isRunning();
    this.node.classList.toggle("locked", this.chat.isRunning());
  }

  #edit() {
    const area = el("textarea", { value: this.message.content, rows: 1, "aria-label": "Edit your message" });
    const close = () => {
      form.replaceWith(this.text, this.actions);
      this.actions.firstChild.focus();
    };
    const save = () => {
      if (!area.value.trim() || this.chat.isRunning()) return;
      this.chat.edit(this.index, area.value);
      $("prompt").focus();
    };
    const form = el("div", { className: "edit" }, area,
      el("div", { className: "row" }, button("Cancel", close),
        button("Send", save, { className: "primary" })));
    area.addEventListener("input", () => fit(area));
    area.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      close();
    });
    submitOnEnter(area, save);
    this.text.replaceWith(form);
    this.actions.remove();
    fit(area);
    area.focus();
  }
}

class AnswerView {
  constructor(message, chat) {
    Object.assign(this, { message, chat });
    this.waiting = el("p", { className: "waiting" });
    this.summary = el("summary");
    this.thoughts = el("div", { className: "thoughts" });
    this.reasoning = el("details", { className: "reasoning" }, this.summary, this.thoughts);
    this.content = new Markdown();
    this.calls = el("div", { className: "calls" });
    this.error = el("div", { className: "error", role: "alert" });
    this.statsLine = el("summary");
    this.statsList = el("dl");
    this.stats = el("details", { className: "stats" }, this.statsLine, this.statsList);
    this.actions = el("div", { className: "actions" },
      button("Copy", () => copyText(message.content)),
      this.regenerate = button("Regenerate", () => this.#again()), button("Delete", () => remove(chat, this.index)));
    this.foot = el("footer", {}, this.actions, this.stats);
    this.node = el("article", { className: "message answer", "aria-label": "Answer" },
      this.reasoning, this.waiting, this.content.node, this.calls, this.error, this.foot);
  }

  update(index) {
    const { message } = this;
    const run = this.chat.runOf(message);
    this.index = index;
    this.node.setAttribute("aria-busy", String(Boolean(run)));
    this.node.classList.toggle("locked", this.chat.isRunning());
    this.#updateReasoning(run);
    const now = performance.now();
    this.waiting.hidden = !run || run.first !== undefined;
    if (run) setText(this.waiting, `Reading the prompt, ${((now - run.started) / 1000).toFixed(1)} s`);
    this.content.update(message.content);
    this.content.node.classList.toggle("growing", Boolean(run?.first && message.content && message.calls.length === 0));
    this.#updateCalls(run);
    this.#updateError(run);
    this.foot.hidden = Boolean(run);
    if (!run) this.#updateStats();
    this.actions.firstChild.hidden = !message.content;
    // Further up it would drop what has been said since.
    const isLast = !this.chat.messages.slice(index).some((later) => later.role === "user");
    this.regenerate.hidden = !isLast || Boolean(message.error);
    if (this.retry) this.retry.hidden = !isLast;
  }

  #again() {
    this.chat.regenerate(this.index);
    $("prompt").focus();
  }

  #updateStats() {
    const line = statsLine(this.message);
    this.stats.hidden = !line;
    if (this.statsLine.textContent === line) return;
    setText(this.statsLine, line);
    this.statsList.replaceChildren(...statsDetails(this.message).flatMap(([name, value]) => (
      [el("dt", { textContent: name }), el("dd", { textContent: value })])));
  }

  #updateReasoning(run) {
    const { message } = this;
    this.reasoning.hidden = !message.reasoning;
    if (!message.reasoning) return;
    const inProgress = run && !run.reasoned;
    const ms = inProgress ? performance.now() - run.first : message.reasoning_ms;
    setText(this.summary, `${inProgress ? "Reasoning" : "Reasoned"} for ${duration(ms ?? 0)}`);
    this.reasoning.classList.toggle("growing", Boolean(inProgress));
    setText(this.thoughts, message.reasoning.trim());
  }

  // Cards of calls; once the answer is complete, with the results or fields for them.
  #updateCalls(run) {
    const { calls } = this.message;
    const after = this.chat.messages.slice(this.index + 1, this.index + 1 + calls.length);
    const results = after.filter((message) => message.role === "tool").map((message) => message.content);
    const state = JSON.stringify([calls, results, Boolean(run)]);
    if (this.shownCalls === state) return;
    this.shownCalls = state;
    const asks = calls.length > 0 && !run && results.length === 0;
    this.fields = asks ? calls.map((call, i) => this.#resultField(call, i)) : [];
    this.calls.replaceChildren(...calls.filter(Boolean).map((call, i) => (
      callCard(call, asks ? this.fields[i] : resultOf(results[i])))));
    if (!asks) return;
    this.calls.append(el("div", { className: "row" },
      button(calls.length > 1 ? "Send results" : "Send result", () => this.#sendResults(), { className: "primary" })));
  }

  #resultField(call, i) {
    const area = el("textarea", {
      rows: 2, "aria-label": `Result of ${call.name}`, placeholder: "What the tool returns" });
    area.addEventListener("input", () => fit(area));
    submitOnEnter(area, () => (this.fields[i + 1] ? this.fields[i + 1].focus() : this.#sendResults()));
    return area;
  }

  #sendResults() {
    if (this.chat.isRunning()) return;
    this.chat.sendResults(this.message, this.fields.map((area) => area.value));
    $("prompt").focus();
  }

  #updateError(run) {
    const { error } = this.message;
    this.error.hidden = !error;
    if (!error || this.error.childElementCount > 0) return;
    this.error.append(el("p", {}, el("strong", { textContent: error.title })),
      el("p", { textContent: error.message }),
      this.retry = button("Try again", () => this.#again(), { className: "retry" }));
  }
}

// The button that was pressed goes away, and the focus would with it.
function remove(chat, index) {
  chat.remove(index);
  $("prompt").focus();
}

function callCard(call, below) {
  return el("section", { className: "call", "aria-label": `Tool call: ${call.name}` },
    el("h3", {}, el("span", { textContent: "Tool call" }), el("code", { textContent: call.name })),
    el("pre", { className: "arguments", textContent: pretty(call.arguments) }), below);
}

const resultOf = (text) =>
  text === undefined ? null : el("div", { className: "result" }, el("h4", { textContent: "Result" }),
    el("pre", { textContent: text }));

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;  // not complete yet, or not JSON
  }
}

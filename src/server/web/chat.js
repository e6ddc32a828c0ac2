// The conversations and the answers in progress. Several conversations may have an answer coming; a run belongs to its
// conversation and goes on while another one is shown.

import { addChunk, finishAnswer, newAnswer, requestBody } from "./answer.js";
import { Failure, streamChat } from "./api.js";
import { notify } from "./dom.js";

const SAVE_EVERY_MS = 2000;
const NOT_RUN = "The tool was not run.";

const newSeed = () => crypto.getRandomValues(new Uint32Array(1))[0];
const titleOf = (text) => text.trim().split("\n")[0].slice(0, 80) || "Conversation";

export class Chat {
  #runs = new Map();  // conversation id -> {answer, controller, started, first, saved}
  conversation = null;
  model = "";
  leaving = false;

  // `onChange(structure)`: the shown conversation changed; with `structure`, in more than the newest answer.
  constructor(store, settings, onChange, announce) {
    Object.assign(this, { store, settings, onChange, announce });
  }

  get messages() {
    return this.conversation.messages;
  }
  isRunning(id = this.conversation.id) {
    return this.#runs.has(id);
  }
  runOf(answer) {
    const run = this.#runs.get(this.conversation.id);
    return run?.answer === answer ? run : undefined;
  }

  open(id) {
    this.conversation = (id && this.store.load(id)) || { id: newId(), title: "", updated: 0, messages: [] };
    this.store.setPreference("open", this.conversation.id);
    this.onChange(true);
  }

  send(text) {
    if (!text.trim() || this.isRunning()) return false;
    this.#closeCalls();
    if (this.messages.length === 0) this.conversation.title = titleOf(text);
    this.messages.push({ role: "user", content: text });
    this.#answer();
    return true;
  }

  // Answers the message before `index` (again).
  regenerate(index) {
    if (this.isRunning()) return;
    this.messages.length = index;
    this.#answer();
  }

  edit(index, text) {
    if (!text.trim() || this.isRunning()) return;
    this.messages.length = index;
    this.send(text);
  }

  sendResults(answer, results) {
    if (this.isRunning()) return;
    this.#insertResults(answer, results);
    this.#answer();
  }

  // A message with all that follows it up to the next one of the user.
  remove(index) {
    if (this.isRunning()) return;
    const { conversation } = this;
    let end = index + 1;
    while (end < this.messages.length && this.messages[end].role !== "user") ++end;
    const removed = this.messages.splice(index, end - index);
    this.#save(conversation);
    this.onChange(true);
    notify("Message deleted.", () => {
      if (this.isRunning(conversation.id)) return;
      conversation.messages.splice(index, 0, ...removed);
      this.#save(conversation);
      this.onChange(true);
    });
  }

  removeConversation(id) {
    const conversation = this.store.load(id);
    this.#runs.get(id)?.controller.abort();
    this.#runs.delete(id);
    this.store.remove(id);
    if (this.conversation.id === id) this.open();
    else this.onChange(true);
    if (!conversation) return;
    notify("Conversation deleted.", () => {
      this.store.save(conversation);
      this.open(id);
    });
  }

  stop() {
    this.#runs.get(this.conversation.id)?.controller.abort();
  }

  // The page goes away: what has come so far is kept.
  leave() {
    this.leaving = true;
    for (const run of this.#runs.values()) this.#save(run.conversation);
  }

  #insertResults(answer, results) {
    const messages = answer.calls.map((call, i) => (
      { role: "tool", tool_call_id: call.id, content: results[i] || NOT_RUN }));
    this.messages.splice(this.messages.indexOf(answer) + 1, 0, ...messages);
  }

  // Calls that the user passes over: a conversation goes on only when each has a result.
  #closeCalls() {
    const last = this.messages.at(-1);
    if (last?.role === "assistant" && last.calls.length > 0) this.#insertResults(last, []);
  }

  async #answer() {
    const { conversation } = this;
    const settings = this.settings();
    const seed = settings.seed ? Number(settings.seed) : newSeed();
    const answer = newAnswer();
    const run = { conversation, answer, controller: new AbortController(), started: performance.now(), saved: 0 };
    this.#runs.set(conversation.id, run);
    const history = [...conversation.messages];
    conversation.messages.push(answer);
    conversation.updated = Date.now();
    this.#save(conversation);
    this.onChange(true);
    const ticking = setInterval(() => this.#changed(run), 200);
    try {
      await streamChat(requestBody(history, settings, this.model, seed), {
        signal: run.controller.signal,
        key: settings.key,
        onChunk: (chunk) => {
          addChunk(answer, chunk, run, performance.now());
          this.#changed(run);
        },
      });
    } catch (error) {
      this.#failed(answer, error);
    }
    clearInterval(ticking);
    finishAnswer(answer, run, performance.now(), seed);
    if (this.#runs.get(conversation.id) !== run) return;  // the conversation has been deleted
    this.#runs.delete(conversation.id);
    this.#save(conversation);
    this.onChange(true);
    this.announce(answer.error ? `${answer.error.title}. ${answer.error.message}`
      : answer.finish === "stopped" ? "Stopped." : "The answer is complete.");
  }

  #failed(answer, error) {
    if (this.leaving) return;  // "interrupted", when the page is shown again
    if (error.name === "AbortError") {
      answer.finish = "stopped";
    } else {
      const failure = error instanceof Failure ? error : new Failure("The page failed", String(error));
      answer.error = { title: failure.title, message: failure.message };
    }
  }

  #changed(run) {
    if (this.#runs.get(run.conversation.id) !== run) return;
    if (performance.now() - run.saved > SAVE_EVERY_MS) {
      run.saved = performance.now();
      this.#save(run.conversation);
    }
    if (run.conversation === this.conversation) this.onChange(false);
  }

  #save(conversation) {
    this.store.save(conversation);
  }
}

const newId = () => Date.now().toString(36) + newSeed().toString(36);

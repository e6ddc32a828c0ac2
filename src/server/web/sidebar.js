// The list of conversations; on narrow screens a drawer.

import { $, button, el } from "./dom.js";

const DAY_MS = 86400000;
const startOfDay = (time) => new Date(time).setHours(0, 0, 0, 0);

// The heading under which a conversation stands.
function ageOf(time) {
  const days = Math.round((startOfDay(Date.now()) - startOfDay(time)) / DAY_MS);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  return days < 7 ? "Past week" : "Earlier";
}

export class Sidebar {
  constructor(chat) {
    this.chat = chat;
    this.narrow = matchMedia("(max-width: 760px)");
    this.narrow.addEventListener("change", () => this.show(false));
    $("menu").addEventListener("click", () => this.show(true));
    $("close-menu").addEventListener("click", () => this.show(false));
    $("shade").addEventListener("click", () => this.show(false));
    $("sidebar").addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.narrow.matches) return;
      event.stopPropagation();
      this.show(false);
    });
    $("new").addEventListener("click", () => this.#open());
    this.show(false);
  }

  // Of the drawer. What it covers can't be reached meanwhile, nor the drawer while it is closed.
  show(open) {
    const drawer = this.narrow.matches;
    const was = document.body.classList.contains("drawer");
    document.body.classList.toggle("drawer", drawer && open);
    $("sidebar").inert = drawer && !open;
    $("main").inert = drawer && open;
    $("menu").setAttribute("aria-expanded", String(drawer && open));
    if (drawer && open) $("new").focus();
    else if (was) $("menu").focus();
  }

  render() {
    const { chat } = this;
    const focused = document.activeElement?.closest?.("#list") ? document.activeElement.id : "";
    const list = $("list");
    list.replaceChildren();
    let age = "";
    for (const entry of chat.store.list()) {
      const its = ageOf(entry.updated);
      if (its !== age) list.append(el("li", { className: "age", textContent: its }));
      age = its;
      list.append(this.#item(entry));
    }
    if (focused) ($(focused) ?? $("new")).focus();
  }

  #item({ id, title }) {
    const { chat } = this;
    const name = title || "Conversation";
    const item = el("li", { className: "entry" },
      button(name, () => this.#open(id), { className: "title", id: `chat-${id}`, title: name }),
      button("×", () => chat.removeConversation(id),
        { className: "remove", id: `remove-${id}`, title: "Delete", "aria-label": `Delete the conversation ${name}` }));
    if (id === chat.conversation.id) item.firstChild.setAttribute("aria-current", "true");
    if (chat.isRunning(id)) item.classList.add("running");
    return item;
  }

  #open(id) {
    this.chat.open(id);
    this.show(false);
    if (!id || !this.narrow.matches) $("prompt").focus();
  }
}

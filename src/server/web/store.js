// What the browser keeps: conversations and settings in its local storage, the API key for this tab only. All of it
// also lives in memory, so that the page works where the browser refuses to store.

const PREFIX = "weir.";
const MOST_CONVERSATIONS = 200;
const MOST_CHARACTERS = 4_000_000;  // browsers allow some 5 million

function storageNamed(name) {
  try {
    return window[name];  // throws where the user has forbidden it
  } catch {
    return null;
  }
}

function read(storage, name) {
  try {
    return JSON.parse(storage.getItem(PREFIX + name));
  } catch {
    return null;
  }
}

export class Store {
  #local = storageNamed("localStorage");
  #session = storageNamed("sessionStorage");
  #loaded = new Map();
  #list = [];
  working = true;  // false once storing has failed

  constructor() {
    this.refresh();
  }

  // Newest first: {id, title, updated, size}.
  list() {
    return this.#list;
  }

  // Another tab may have changed the list; what this tab has loaded stays, except for `id`.
  refresh(id) {
    if (!this.working) return;  // what is in memory is newer
    const stored = read(this.#local, "list");
    if (Array.isArray(stored)) this.#list = stored.filter((entry) => typeof entry?.id === "string");
    if (id) this.#loaded.delete(id);
  }

  load(id) {
    if (!this.#loaded.has(id)) {
      const stored = read(this.#local, `chat.${id}`);
      if (!Array.isArray(stored?.messages)) return null;
      this.#loaded.set(id, stored);
    }
    return this.#loaded.get(id);
  }

  save(conversation) {
    const size = JSON.stringify(conversation).length;
    this.#loaded.set(conversation.id, conversation);
    this.refresh();
    const { id, title, updated } = conversation;
    const others = this.#list.filter((entry) => entry.id !== id);
    this.#list = [{ id, title, updated, size }, ...others].sort((a, b) => b.updated - a.updated);
    this.#makeRoom(id, (sum) => sum <= MOST_CHARACTERS && this.#list.length <= MOST_CONVERSATIONS);
    this.working = this.#makeRoom(id, () => this.#write(`chat.${id}`, conversation) && this.#write("list", this.#list));
  }

  remove(id) {
    this.refresh();
    this.#list = this.#list.filter((entry) => entry.id !== id);
    this.#loaded.delete(id);
    this.#erase(`chat.${id}`);
    this.#write("list", this.#list);
  }

  settings() {
    return { ...read(this.#local, "settings"), key: read(this.#session, "key") ?? "" };
  }

  saveSettings({ key, ...settings }) {
    this.working = this.#write("settings", settings);
    try {
      this.#session.setItem(`${PREFIX}key`, JSON.stringify(key));
    } catch { /* the key is in memory */ }
  }

  // Which panels are open, the theme, the conversation shown.
  preference(name) {
    return read(this.#local, name);
  }
  setPreference(name, value) {
    this.#write(name, value);
  }

  // Drops the oldest conversations but `id` until `fits`; false when that did not help.
  #makeRoom(id, fits) {
    for (;;) {
      if (fits(this.#list.reduce((sum, entry) => sum + entry.size, 0))) return true;
      const oldest = this.#list.findLast((entry) => entry.id !== id);
      if (!oldest || this.#local === null) return false;
      this.#list = this.#list.filter((entry) => entry !== oldest);
      this.#erase(`chat.${oldest.id}`);
    }
  }

  #write(name, value) {
    try {
      this.#local.setItem(PREFIX + name, JSON.stringify(value));
      return true;
    } catch {
      return false;
    }
  }

  #erase(name) {
    try {
      this.#local.removeItem(PREFIX + name);
    } catch { /* nothing was stored */ }
  }
}

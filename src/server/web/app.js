// Puts the page together.

import { getJson } from "./api.js";
import { Chat } from "./chat.js";
import { $, count, fit, notify, setText, submitOnEnter } from "./dom.js";
import { EnginePanel } from "./engine.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Store } from "./store.js";
import { Transcript } from "./transcript.js";

const store = new Store();
const prompt = $("prompt");

// --- light and dark: as the system has it, until the user wants the other one

const darkSystem = matchMedia("(prefers-color-scheme: dark)");
const systemTheme = () => (darkSystem.matches ? "dark" : "light");

function applyTheme() {
  const theme = store.preference("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  $("theme").setAttribute("aria-pressed", String((theme ?? systemTheme()) === "dark"));
  engine.timeline.draw();
}

function toggleTheme() {
  const next = (store.preference("theme") ?? systemTheme()) === "dark" ? "light" : "dark";
  store.setPreference("theme", next === systemTheme() ? null : next);
  applyTheme();
}

// --- the model's name

function showModel({ name, context }) {
  if (!name) return;
  chat.model = name;
  setText($("model"), name);
  setText($("empty-model"), context > 0 ? `${name}, a context of ${count(context)} tokens` : name);
}

async function askModel() {
  try {
    const { data } = await getJson("/v1/models", { key: settings.values.key });
    const [model] = data;
    showModel({ name: model.id, context: model.context_length ?? model.max_model_len ?? 0 });
  } catch {
    setText($("model"), "");  // requests do without the name, and say what is wrong with the server
  }
}

// --- the conversation

function showChat(structure) {
  if (!structure) return transcript.updateLast();
  transcript.sync();
  sidebar.render();
  const running = chat.isRunning();
  setText($("send"), running ? "Stop" : "Send");
  $("send").classList.toggle("stop", running);
  const { title } = chat.conversation;
  setText($("title"), title || "New conversation");
  document.title = title ? `${title} – weir` : "weir";
  $("unsaved").hidden = store.working;
}

function submit() {
  if (!chat.send(prompt.value)) return;
  prompt.value = "";
  fit(prompt);
}

let saidTimer = 0;
function announce(text) {
  clearTimeout(saidTimer);
  setText($("said"), "");
  saidTimer = setTimeout(() => setText($("said"), text), 50);
}

const settings = new Settings(store);
const chat = new Chat(store, () => settings.values, (structure) => showChat(structure), announce);
const transcript = new Transcript(chat);
const sidebar = new Sidebar(chat);
const engine = new EnginePanel(store, () => settings.values, showModel);

$("settings").addEventListener("close", () => chat.model || askModel());  // there may be a key now
$("theme").addEventListener("click", toggleTheme);
darkSystem.addEventListener("change", applyTheme);
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (chat.isRunning()) chat.stop();
  else submit();
  prompt.focus();
});
prompt.addEventListener("input", () => fit(prompt));
submitOnEnter(prompt, submit);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || $("settings").open) return;
  if (chat.isRunning()) chat.stop();
  else if (document.body.classList.contains("with-engine") && !engine.wide.matches) engine.show(false);
});
addEventListener("pagehide", () => chat.leave());
addEventListener("pageshow", () => (chat.leaving = false));
addEventListener("storage", () => {
  // Another tab has stored something. What is shown here is only replaced when nothing is under way.
  const { id } = chat.conversation;
  if (chat.isRunning()) return store.refresh();
  store.refresh(id);
  const stored = store.load(id);
  if (stored && JSON.stringify(stored) !== JSON.stringify(chat.conversation)) chat.open(id);
  else sidebar.render();
});
addEventListener("unhandledrejection", (event) => notify(`The page failed: ${event.reason}`));

applyTheme();
chat.open(store.preference("open"));
askModel();
if (matchMedia("(hover: hover)").matches) prompt.focus();

// The dialog of settings. Fields take effect as they are typed; one with an error is not taken over. Empty fields are
// left out of requests, so that the server's defaults apply.

import { parseTools } from "./answer.js";
import { $, el, setText } from "./dom.js";

// Of numbers: label, and attributes of the field.
const NUMBERS = {
  temperature: ["Temperature", { min: 0, max: 100 }],
  top_p: ["Top p", { min: 0, max: 1 }],
  top_k: ["Top k", { min: 0, step: 1 }],
  min_p: ["Min p", { min: 0, max: 1 }],
  max_tokens: ["Max tokens", { min: 1, step: 1 }],
  seed: ["Seed", { min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, placeholder: "random" }],
};
const FIELDS = ["system", ...Object.keys(NUMBERS), "effort", "tools", "key"];

const EXAMPLE = [{
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather at a place now.",
    parameters: { type: "object", properties: { place: { type: "string" } }, required: ["place"] },
  },
}];

export class Settings {
  constructor(store) {
    this.store = store;
    this.values = { ...Object.fromEntries(FIELDS.map((name) => [name, ""])), ...store.settings() };
    $("fields").prepend(...Object.entries(NUMBERS).map(([name, [label, limits]]) => numberField(name, label, limits)));
    const dialog = $("settings");
    $("open-settings").addEventListener("click", () => dialog.showModal());
    $("close-settings").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    $("set-key").form.addEventListener("submit", (event) => {
      event.preventDefault();
      dialog.close();
    });
    $("example-tool").addEventListener("click", () => {
      this.#field("tools").value = JSON.stringify(EXAMPLE, null, 2);
      this.#take("tools");
    });
    $("reset-settings").addEventListener("click", () => {
      for (const name of FIELDS.filter((one) => one !== "key")) {
        this.#field(name).value = "";
        this.#take(name);
      }
    });
    for (const name of FIELDS) {
      this.#field(name).value = this.values[name];
      this.#field(name).addEventListener("input", () => this.#take(name));
    }
  }

  #field(name) {
    return $(`set-${name}`);
  }

  #take(name) {
    const field = this.#field(name);
    const error = name === "tools" ? toolsError(field.value) : field.validationMessage;
    const place = $(`error-${name}`);
    field.setAttribute("aria-invalid", String(error !== ""));
    if (place) setText(place, error);
    if (error) return;
    this.values[name] = field.value;
    this.store.saveSettings(this.values);
  }
}

function numberField(name, label, limits) {
  const id = `set-${name}`, error = `error-${name}`;
  return el("div", {}, el("label", { htmlFor: id, textContent: label }),
    el("input", { id, type: "number", step: "any", placeholder: "default", "aria-describedby": error, ...limits }),
    el("p", { id: error, className: "field-error", role: "status" }));
}

function toolsError(text) {
  try {
    parseTools(text);
    return "";
  } catch (error) {
    return error.message;
  }
}

// The live view of the engine: polls GET /engine while it is visible.

import { getJson } from "./api.js";
import { $, count, duration, el, percent, setText } from "./dom.js";
import { CACHE_REASONS } from "./stats.js";
import { Timeline } from "./timeline.js";

const EVERY_MS = 500;
const AFTER_ERROR_MS = 2000;

export class EnginePanel {
  #timer = 0;
  #poll = null;  // AbortController of the request under way
  #before = null;  // {counters, uptime_s} of the last answer
  #gauges = new Map();

  constructor(store, settings, onModel) {
    Object.assign(this, { store, settings, onModel });
    this.timeline = new Timeline();
    this.wide = matchMedia("(min-width: 1101px)");
    $("toggle-engine").addEventListener("click", () => this.show($("engine").hidden));
    $("close-engine").addEventListener("click", () => this.show(false));
    document.addEventListener("visibilitychange", () => this.#restart());
    this.show(Boolean(store.preference("engine")) && this.wide.matches, false);
  }

  show(open, byUser = true) {
    $("engine").hidden = !open;
    $("toggle-engine").setAttribute("aria-expanded", String(open));
    document.body.classList.toggle("with-engine", open);
    if (byUser) {
      this.store.setPreference("engine", open);
      (open && !this.wide.matches ? $("close-engine") : $("toggle-engine")).focus();
    }
    this.#restart();
  }

  #restart() {
    clearTimeout(this.#timer);
    this.#poll?.abort();
    this.#poll = null;
    if (!$("engine").hidden && !document.hidden) this.#update();
  }

  async #update() {
    const poll = (this.#poll = new AbortController());
    let wait = EVERY_MS;
    try {
      const since = Math.max(0, this.timeline.last());
      const state = await getJson(`/engine?since=${since}`, { key: this.settings().key, signal: poll.signal });
      if (this.#poll !== poll) return;
      this.#show(state);
    } catch (error) {
      if (this.#poll !== poll) return;
      wait = AFTER_ERROR_MS;
      setText($("engine-state"), error.title ?? "The answer makes no sense");
      $("engine").classList.add("stale");
    }
    this.#timer = setTimeout(() => this.#update(), wait);
  }

  #show(state) {
    const restarted = this.#before && state.uptime_s < this.#before.uptime_s;
    if (restarted) {
      this.timeline.clear();
      this.#before = null;
    }
    this.timeline.add(state.steps);
    this.timeline.draw();
    $("engine").classList.remove("stale");
    setText($("engine-state"), `${state.state}, up ${duration(1000 * state.uptime_s)}`);
    this.#showRates(state);
    this.#showMemory(state);
    showCache(state);
    showCounters(state);
    this.onModel(state.model);
    this.#before = { counters: state.counters, uptime_s: state.uptime_s };
  }

  #showRates({ running, waiting, counters, uptime_s }) {
    setText($("running"), count(running));
    setText($("waiting"), count(waiting));
    const seconds = this.#before ? uptime_s - this.#before.uptime_s : 0;
    if (seconds <= 0) return;
    const rate = (name) => count(Math.round((counters[name] - this.#before.counters[name]) / seconds));
    setText($("decode-rate"), rate("decode_rows"));
    setText($("prompt-rate"), rate("prompt_rows"));
  }

  #showMemory({ pages, anchors, cached_chunks, restore_points }) {
    pages.forEach((group, i) => this.#gauge(`pages${i}`, pages.length > 1 ? `Pages, group ${i + 1}` : "Pages", group));
    this.#gauge("anchors", "Anchors", anchors);
    setText($("cached-chunks"), count(cached_chunks));
    setText($("restore-points"), count(restore_points));
  }

  #gauge(id, name, { total, free }) {
    if (total === 0) return;
    let gauge = this.#gauges.get(id);
    if (!gauge) {
      gauge = makeGauge(name);
      this.#gauges.set(id, gauge);
      $("gauges").append(gauge.node);
    }
    gauge.set(total - free, total);
  }
}

function makeGauge(name) {
  const value = el("span"), fill = el("span", { className: "fill" });
  const bar = el("div", { className: "bar", role: "meter", "aria-label": name, "aria-valuemin": "0" }, fill);
  const head = el("div", { className: "gauge-head" }, el("span", { textContent: name }), value);
  const set = (used, total) => {
    setText(value, `${count(used)} of ${count(total)}`);
    fill.style.width = `${(100 * used) / total}%`;
    bar.setAttribute("aria-valuemax", total);
    bar.setAttribute("aria-valuenow", used);
    bar.setAttribute("aria-valuetext", value.textContent);
  };
  return { node: el("div", { className: "gauge" }, head, bar), set };
}

function showCache({ cache }) {
  setText($("hit-rate"), percent(cache.hit_tokens, cache.queried_tokens));
  setText($("hit-text"), `${count(cache.hit_tokens)} of ${count(cache.queried_tokens)} prompt tokens`);
  setText($("evictions"), count(cache.evictions));
  const reasons = Object.entries(cache.reasons).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
  const most = reasons[0]?.[1] ?? 1;
  $("reasons").replaceChildren(...reasons.flatMap(([reason, n]) => {
    const fill = el("span", { className: "fill" });
    fill.style.width = `${(100 * n) / most}%`;
    return [el("dt", { textContent: CACHE_REASONS[reason] ?? reason }),
      el("dd", {}, el("span", { className: "bar" }, fill), el("span", { textContent: count(n) }))];
  }));
}

const COUNTERS = ["submitted", "finished", "cancelled", "refused", "failed", "preemptions"];

function showCounters({ counters }) {
  if ($("counters").childElementCount === 0) {
    for (const name of COUNTERS) {
      $("counters").append(el("div", {}, el("dt", { textContent: name }), el("dd", { id: `counter-${name}` })));
    }
  }
  for (const name of COUNTERS) setText($(`counter-${name}`), count(counters[name]));
}

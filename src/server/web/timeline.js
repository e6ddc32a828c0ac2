// Steps drawn as columns on two canvases: the spans of each step, and below them its time. A span of one row is a
// sequence that generates; a longer one is a chunk of a prompt, whose height grows with the logarithm of its rows.

import { $, duration, plural, setText } from "./dom.js";

const COLUMN = 5;  // CSS pixels with the gap of 1
const ROW = 3;
const DOUBLING = 4;  // per factor of two in rows
const LARGEST = 2.5;  // by which steps with few spans are drawn larger
export const MOST_STEPS = 512;

const heightOf = (rows) => ROW + DOUBLING * Math.log2(rows);
const heightOfStep = (step) => step.spans.reduce((sum, [, , rows]) => sum + heightOf(rows) + 1, 0);
const colourOf = (id) => getComputedStyle($(id)).backgroundColor;  // the legend's swatches follow the theme
const rowsOf = (step) => step.spans.reduce((sum, [, , rows]) => sum + rows, 0);

export class Timeline {
  #steps = [];
  #chosen = null;  // the step pointed at
  #drawn = 0;

  constructor() {
    this.spans = $("spans");
    this.times = $("times");
    for (const canvas of [this.spans, this.times]) {
      canvas.addEventListener("pointermove", (event) => this.#point(event.offsetX));
      canvas.addEventListener("pointerleave", () => this.#choose(null));
    }
    this.spans.addEventListener("keydown", (event) => this.#key(event));
    this.spans.addEventListener("blur", () => this.#choose(null));
    new ResizeObserver(() => this.draw()).observe(this.spans);
  }

  clear() {
    this.#steps = [];
    this.#chosen = null;
  }

  add(steps) {
    for (const step of steps) if (step.step > this.last()) this.#steps.push(step);
    this.#steps.splice(0, this.#steps.length - MOST_STEPS);
  }

  last() {
    return this.#steps.at(-1)?.step ?? -1;
  }

  draw() {
    const fits = Math.max(1, Math.floor(this.spans.clientWidth / COLUMN));
    const shown = this.#steps.slice(-fits);
    this.#drawn = shown.length;
    this.#drawSpans(shown);
    this.#drawTimes(shown);
    const newest = shown.at(-1);
    const told = this.#chosen ?? newest;
    setText($("step-text"), told ? describe(told) : "No steps yet");
    this.spans.setAttribute("aria-label", `Spans of the last ${plural(shown.length, "step")}`);
  }

  #drawSpans(shown) {
    const { context, width, height } = prepare(this.spans);
    const decode = colourOf("key-decode"), prompt = colourOf("key-prompt");
    const fullest = Math.max(1, ...shown.map(heightOfStep));
    const scale = Math.min(LARGEST, height / fullest);
    shown.forEach((step, i) => {
      const x = width - (shown.length - i) * COLUMN;
      let y = height;
      if (step === this.#chosen) mark(context, x, height);
      for (const [, , rows] of step.spans) {
        const h = heightOf(rows) * scale;
        context.fillStyle = rows === 1 ? decode : prompt;
        context.fillRect(x, y - h, COLUMN - 1, h);
        y -= h + Math.min(1, scale);
      }
    });
  }

  #drawTimes(shown) {
    const { context, width, height } = prepare(this.times);
    const most = Math.max(1e-6, ...shown.map((step) => step.model_ms + step.other_ms));
    const model = colourOf("key-model"), other = colourOf("key-other");
    setText($("time-scale"), shown.length > 0 ? `up to ${precise(most)}` : "");
    shown.forEach((step, i) => {
      const x = width - (shown.length - i) * COLUMN;
      const a = (height * step.model_ms) / most, b = (height * step.other_ms) / most;
      if (step === this.#chosen) mark(context, x, height);
      context.fillStyle = model;
      context.fillRect(x, height - a, COLUMN - 1, a);
      context.fillStyle = other;
      context.fillRect(x, height - a - b, COLUMN - 1, b);
    });
  }

  #choose(step) {
    if (this.#chosen === step) return;
    this.#chosen = step;
    this.draw();
  }

  #point(x) {
    const fromRight = Math.floor((this.spans.clientWidth - x) / COLUMN);
    this.#choose(fromRight < this.#drawn ? (this.#steps.at(-1 - fromRight) ?? null) : null);
  }

  #key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || this.#drawn === 0) return;
    event.preventDefault();
    const oldest = this.#steps.length - this.#drawn;
    const at = this.#chosen ? this.#steps.indexOf(this.#chosen) + move : this.#steps.length - 1;
    this.#choose(this.#steps[Math.min(this.#steps.length - 1, Math.max(oldest, at))]);
  }
}

// The canvas cleared, in CSS pixels whatever the screen's density.
function prepare(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const density = devicePixelRatio || 1;
  canvas.width = Math.round(width * density);
  canvas.height = Math.round(height * density);
  const context = canvas.getContext("2d");
  context.scale(density, density);
  return { context, width, height };
}

function mark(context, x, height) {
  context.fillStyle = colourOf("key-chosen");
  context.fillRect(x - 1, 0, COLUMN + 1, height);
}

const precise = (ms) => (ms < 100 ? `${ms.toFixed(1)} ms` : duration(ms));

function describe(step) {
  const generating = step.spans.filter(([, , rows]) => rows === 1).length;
  const chunks = step.spans.filter(([, , rows]) => rows > 1);
  const parts = [`Step ${step.step}`, plural(rowsOf(step), "row")];
  if (generating > 0) parts.push(`${generating} generating`);
  if (chunks.length === 1) parts.push(`prompt of request ${chunks[0][0]}, ${chunks[0][2]} rows from ${chunks[0][1]}`);
  if (chunks.length > 1) parts.push(`${chunks.length} prompt chunks`);
  parts.push(precise(step.model_ms + step.other_ms));
  return parts.join(" · ");
}

// What an answer cost, in words.

import { count, duration, plural } from "./dom.js";

export const CACHE_REASONS = {
  full: "all that could match",
  diverged: "new from there on",
  no_anchor: "no restore point further on",
  evicted: "the rest had to make room",
  damaged: "stored blocks were damaged",
  no_room: "no room to bring the rest in",
  disabled: "the cache is off",
};

const FINISHES = {
  stopped: "stopped",
  length: "cut off at the limit of tokens",
  content_filter: "ended by a filter",
};

export function statsLine({ stats = {}, finish, error }) {
  const { tokens, rate, first_ms, cached, prompt, queue_ms } = stats;
  return [
    finish === undefined && !error ? "interrupted" : FINISHES[finish],
    tokens !== undefined && plural(tokens, "token"),
    rate && `${rate.toFixed(rate < 10 ? 2 : 1)} tokens/s`,
    first_ms !== undefined && `first after ${duration(first_ms)}`,
    queue_ms >= 50 && `queued ${duration(queue_ms)}`,
    cached !== undefined && `${count(cached)}${prompt ? ` of ${count(prompt)}` : ""} cached`,
  ].filter(Boolean).join(" · ");
}

// What is behind the line: [name, value].
export function statsDetails({ stats = {} }) {
  const { cached, prompt, prompt_n, prompt_ms, queue_ms, reason, seed } = stats;
  const why = reason ? `: ${CACHE_REASONS[reason] ?? reason}` : "";
  return [
    prompt !== undefined && ["Prompt", plural(prompt, "token")],
    cached !== undefined && ["From the cache", plural(cached, "token") + why],
    prompt_n !== undefined && ["Computed", `${plural(prompt_n, "token")} in ${duration(prompt_ms)}`],
    queue_ms !== undefined && ["Queued", duration(queue_ms)],
    seed !== undefined && ["Seed", String(seed)],
  ].filter(Boolean);
}

// Requests to the server. What goes wrong becomes a Failure, which says it in words.

import { duration } from "./dom.js";
import { eventsOf } from "./sse.js";

export class Failure extends Error {
  constructor(title, message = "", status = 0) {
    super(message);
    this.title = title;
    this.status = status;
  }
}

const TITLES = {
  400: "The server refused the request",
  401: "The server wants an API key",
  403: "The server does not allow this",
  404: "The server does not know this",
  413: "The request is too large",
  429: "The server is busy",
  503: "The server is not ready",
};

function failureOf(error, title, status = 0) {
  const said = typeof error === "string" ? error : (error?.message ?? JSON.stringify(error));
  const param = error?.param && !said.includes(error.param) ? ` (field ${error.param})` : "";
  return new Failure(title, said + param, status);
}

async function refusal(response) {
  const text = (await response.text().catch(() => "")).slice(0, 100000);
  const title = `${TITLES[response.status] ?? "The server failed"} (${response.status})`;
  const wait = Number(response.headers.get("retry-after"));
  const hint = wait > 0 ? ` Try again in ${duration(1000 * wait)}.` : "";
  const also = response.status === 401 ? " It goes into Settings." : "";
  let failure;
  try {
    failure = failureOf(JSON.parse(text).error ?? text, title, response.status);
  } catch {
    failure = new Failure(title, text.slice(0, 500), response.status);
  }
  if (hint + also && !/[.!?]$/.test(failure.message)) failure.message += ".";
  failure.message += hint + also;
  return failure;
}

export async function request(path, { key, ...options } = {}) {
  const headers = { ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  if (options.body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("No connection", "The server can't be reached. Is it running?");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

export const getJson = async (path, options) => (await request(path, options)).json();

// Calls onChunk with every chunk of a streamed chat completion. Returns when the answer is complete; an AbortError
// when `signal` ended it, a Failure else.
export async function streamChat(body, { signal, key, onChunk }) {
  const response = await request("/v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal, key });
  let complete = false;
  try {
    for await (const event of eventsOf(response.body)) {
      if (event.data === "[DONE]") return;
      const chunk = parseChunk(event.data);
      if (event.type === "error" || chunk.error) {
        throw failureOf(chunk.error ?? chunk, "The answer ended with an error");
      }
      complete ||= chunk.choices?.some((choice) => choice.finish_reason) ?? false;
      onChunk(chunk);
    }
  } catch (error) {
    if (error instanceof Failure || error.name === "AbortError") throw error;
    throw new Failure("The connection was lost", "The answer is not complete.");
  }
  if (!complete) throw new Failure("The connection was lost", "The server closed it before the answer was complete.");
}

function parseChunk(data) {
  let chunk = null;
  try {
    chunk = JSON.parse(data);
  } catch { /* below */ }
  if (chunk === null || typeof chunk !== "object") {
    throw new Failure("The server sent something unexpected", data.slice(0, 200));
  }
  return chunk;
}

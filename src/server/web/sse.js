// Server-sent events out of a stream of text, wherever the stream is cut (the HTML standard, 9.2.6).

export class EventParser {
  #rest = "";
  #type = "";
  #data = [];

  // The events that `text` completes, each {type, data}.
  push(text) {
    const events = [];
    // A CR at the very end may be half of a CRLF, so it waits for what follows.
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?=[^])/);
    this.#rest = lines.pop();
    for (const line of lines) {
      if (line !== "") this.#field(line);
      else this.#dispatch(events);
    }
    return events;
  }

  #field(line) {
    const colon = line.indexOf(":");
    if (colon === 0) return;  // a comment: keep-alive
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#type = value;
  }

  #dispatch(events) {
    if (this.#data.length > 0) events.push({ type: this.#type || "message", data: this.#data.join("\n") });
    this.#type = "";
    this.#data = [];
  }
}

// The events of a response's body. The decoder holds back the bytes of a character that is not complete.
export async function* eventsOf(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

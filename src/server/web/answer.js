// Messages as they are kept and as the API has them. An answer is a message of the assistant with a few fields of its
// own: reasoning, reasoning_ms, calls [{id, name, arguments}], finish, stats, error {title, message}.

export const newAnswer = () => ({ role: "assistant", content: "", reasoning: "", calls: [] });

// Adds a streamed chunk. `run` has the times: {started, first, reasoned}, of performance.now().
export function addChunk(answer, chunk, run, now) {
  if (chunk.usage) answer.usage = chunk.usage;
  if (chunk.timings) answer.timings = chunk.timings;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  if (choice.finish_reason) answer.finish = choice.finish_reason;
  const delta = choice.delta ?? {};
  const reasoning = delta.reasoning_content ?? "";
  const content = delta.content ?? "";
  const calls = delta.tool_calls ?? [];
  if (reasoning || content || calls.length > 0) run.first ??= now;
  if (reasoning) {
    answer.reasoning += reasoning;
    answer.reasoning_ms = now - run.first;
  } else if ((content || calls.length > 0) && answer.reasoning && !run.reasoned) {
    run.reasoned = true;
    answer.reasoning_ms = now - run.first;
  }
  answer.content += content;
  for (const part of calls) addCall(answer, part);
}

function addCall(answer, part) {
  const call = (answer.calls[part.index ?? answer.calls.length] ??= { id: "", name: "", arguments: "" });
  if (part.id) call.id = part.id;
  call.name += part.function?.name ?? "";
  call.arguments += part.function?.arguments ?? "";
}

// What is shown under the answer, and nothing else of usage and timings is kept.
export function finishAnswer(answer, run, now, seed) {
  const { usage, timings } = answer;
  delete answer.usage;
  delete answer.timings;
  answer.calls = answer.calls.filter(Boolean);
  const tokens = usage?.completion_tokens ?? timings?.predicted_n;
  // The time from the first token to the last one holds all tokens but the first.
  const decode = timings?.predicted_ms ?? (run.first === undefined ? 0 : now - run.first);
  const later = (timings?.predicted_n ?? tokens ?? 0) - 1;
  answer.stats = {
    seed,
    tokens,
    rate: later > 0 && decode > 0 ? (1000 * later) / decode : undefined,
    first_ms: run.first === undefined ? undefined : run.first - run.started,
    prompt: usage?.prompt_tokens,
    cached: usage?.prompt_tokens_details?.cached_tokens ?? timings?.cached_n,
    reason: timings?.cache_reason,
    prompt_n: timings?.prompt_n,
    prompt_ms: timings?.prompt_ms,
    queue_ms: timings?.queue_ms,
  };
}

const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "max_tokens"];

export function requestBody(messages, settings, model, seed) {
  const body = { stream: true, stream_options: { include_usage: true }, messages: [], seed };
  if (model) body.model = model;
  if (settings.system) body.messages.push({ role: "system", content: settings.system });
  for (const message of messages) {
    const sent = sentForm(message);
    if (sent) body.messages.push(sent);
  }
  for (const name of SAMPLING) {
    if (settings[name]) body[name] = Number(settings[name]);
  }
  if (settings.effort) body.reasoning_effort = settings.effort;
  const tools = parseTools(settings.tools);
  if (tools.length > 0) body.tools = tools;
  return body;
}

function sentForm(message) {
  if (message.role === "user") return { role: "user", content: message.content };
  if (message.role === "tool") {
    return { role: "tool", tool_call_id: message.tool_call_id, content: message.content };
  }
  if (!message.content && message.calls.length === 0) return null;  // nothing came but an error, or reasoning
  const sent = { role: "assistant", content: message.content };
  if (message.reasoning) sent.reasoning_content = message.reasoning;
  if (message.calls.length > 0) {
    sent.tool_calls = message.calls.map((call) => (
      { id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  }
  return sent;
}

// The tools declared in `text`: an array, or nothing. An Error says what is wrong.
export function parseTools(text) {
  if (!text?.trim()) return [];
  const tools = JSON.parse(text);
  if (!Array.isArray(tools)) throw new Error("Expected an array of tools: [ … ].");
  tools.forEach((tool, i) => {
    if (tool?.type !== "function" || typeof tool.function?.name !== "string") {
      throw new Error(`Tool ${i + 1}: expected {"type": "function", "function": {"name": …}}.`);
    }
  });
  return tools;
}

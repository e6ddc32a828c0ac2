#!/usr/bin/env python3
"""A server of scripted answers for the web page: what the last message says decides what comes (SCRIPTS).

    mock_server.py PAGE_FOLDER [PORT]     # the folder with web_page.html and web_page.csp
"""

import json
import math
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

SOURCES = Path(__file__).resolve().parent.parent.parent / "src" / "server" / "web"
MODEL = {"name": "mock-1", "context": 8192}

MARKDOWN = """Two ways to hold a river back:

1. A **weir** lets the water pass over it
   - it keeps the level upstream
   - it needs *no gates*
2. A **dam** doesn't

```python
def flow(width, head):
    # Poleni's formula, in m³/s
    return 1.84 * width * head ** 1.5
```

Call `flow(12, 0.4)` for a crest of 12 m. See [the article](https://en.wikipedia.org/wiki/Weir).

| kind | sill | coefficient |
|---|---|---|
| sharp-crested | thin plate | 1.84 |
| broad-crested | wide block | 1.70 |

> Measured upstream, at four times the head."""

HOSTILE = """<script>window.hacked = 1</script>
<img src=x onerror="window.hacked = 1"> **<b onclick="window.hacked=1">bold</b>**

[press me](javascript:window.hacked=1) [or](data:text/html,<script>window.hacked=1</script>)

```html"><img src=x onerror=window.hacked=1>
</code></pre><script>window.hacked = 1</script>
```

- <svg onload="window.hacked = 1">

| <iframe srcdoc="<script>parent.hacked=1</script>"> | b |
|---|---|
| <a href="javascript:window.hacked=1">c</a> | d |"""

REASONING = "The river is 12 m wide.\nThe head is 0.4 m, so the flow follows from Poleni's formula."
WEATHER = [{"id": "call_1", "name": "get_weather", "arguments": '{"place": "Oslo", "days": 2}'}]
BOTH = WEATHER + [{"id": "call_2", "name": "get_<b>tide</b>", "arguments": '{"harbour": "<img src=x onerror=window.hacked=1>"}'}]


def words(text):
    return re.findall(r"\S+\s*|\s+", text)


def text_of(content):
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


class Answer:
    """Writes one streamed answer. All parts count as tokens."""

    def __init__(self, handler, body):
        self.handler, self.body, self.tokens, self.started = handler, body, 0, time.monotonic()

    def send(self, delta, finish=None, **more):
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        self.handler.event({"object": "chat.completion.chunk", "model": MODEL["name"], "choices": [choice], **more})

    def begin(self):
        self.handler.start_stream()
        self.send({"role": "assistant", "content": ""})

    def stream(self, parts, field="content", pause=0.004):
        for part in parts:
            self.send({field: part})
            self.tokens += 1
            time.sleep(pause)

    def calls(self, calls):
        for i, call in enumerate(calls):
            head = {"name": call["name"], "arguments": ""}
            self.send({"tool_calls": [{"index": i, "id": call["id"], "type": "function", "function": head}]})
            for at in range(0, len(call["arguments"]), 5):
                part = {"arguments": call["arguments"][at:at + 5]}
                self.send({"tool_calls": [{"index": i, "function": part}]})
                self.tokens += 1

    def end(self, finish="stop"):
        self.send({}, finish)
        prompt = 16 * len(self.body["messages"])
        cached = prompt - 16
        self.handler.event({
            "choices": [],
            "usage": {"prompt_tokens": prompt, "completion_tokens": self.tokens, "total_tokens": prompt + self.tokens,
                      "prompt_tokens_details": {"cached_tokens": cached}},
            "timings": {"queue_ms": 0.4, "prompt_n": prompt - cached, "prompt_ms": 31.5, "cached_n": cached,
                        "cache_reason": "no_anchor", "predicted_n": self.tokens, "predicted_ms": 25.0 * self.tokens}})
        self.handler.data("[DONE]")
        self.handler.end_stream()


def plain(answer, text):
    answer.begin()
    answer.stream(words(text))
    answer.end()


def slow(answer, _):
    answer.begin()
    answer.stream((f"drop {i} " for i in range(2000)), pause=0.03)
    answer.end()


def reason(answer, _):
    answer.begin()
    answer.stream(words(REASONING), "reasoning_content", pause=0.02)
    answer.stream(words("About **5.6 m³/s** pass over it."))
    answer.end()


def tools(answer, text):
    answer.begin()
    answer.stream(words("Let me look."))
    answer.calls(BOTH if "both" in text else WEATHER)
    answer.end("tool_calls")


def refuse(answer, text):
    status = int(re.search(r"\d+", text).group())
    error = {"message": "request: field 'top_p': expected a number of 0 to 1, found 7", "type": "invalid_request_error",
             "param": "top_p", "code": None}
    answer.handler.send(status, json.dumps({"error": error}), "application/json", {"Retry-After": "3"})


def fault(answer, _):
    answer.begin()
    answer.stream(words("Half of an answer"))
    answer.handler.event({"error": {"message": "the logits are not finite", "type": "server_error"}})
    answer.handler.end_stream()


def drop(answer, _):
    answer.begin()
    answer.stream(words("Cut in the"))
    time.sleep(0.5)  # a browser forgets what it has not read when the connection breaks
    answer.handler.close_connection = True  # without the last chunk


def silent_end(answer, _):
    answer.begin()
    answer.stream(words("Ends without saying so"))
    answer.handler.end_stream()


def crumbs(answer, _):
    """Bytes one by one, with the line ends, comments and fields that the standard allows."""
    handler = answer.handler
    handler.start_stream()
    text = "Fuß, naïve, 水, 🌊 – done"
    events = ": keep-alive\r\n\r\nid: 1\r\nretry: 9\r\n"
    for i, part in enumerate([text[:9], text[9:]]):
        data = json.dumps({"choices": [{"delta": {"content": part}, "finish_reason": "stop" if i else None}]},
                          ensure_ascii=False)
        end = "\r" if i else "\r\n"
        events += f"event: message{end}data:{data}{end}{end}"
    for byte in (events + "data: [DONE]\n\n").encode():
        handler.chunk(bytes([byte]))
    handler.end_stream()


SCRIPTS = [
    ("slow", slow), ("reason", reason), ("tool", tools), ("refuse", refuse), ("fault", fault), ("drop", drop),
    ("silent", silent_end), ("crumbs", crumbs), ("markdown", lambda answer, _: plain(answer, MARKDOWN)),
    ("short", lambda answer, _: plain(answer, "Yes.")), ("hostile", lambda answer, _: plain(answer, HOSTILE)),
]


def answer_to(answer, server):
    last = answer.body["messages"][-1]
    text = text_of(last["content"])
    if last["role"] == "tool":
        return plain(answer, f"The tool says: {text}")
    if "once" in text and server.once():
        text = "refuse 503"
    for word, script in SCRIPTS:
        if text.startswith(word):
            return script(answer, text)
    return plain(answer, f"You said: {text}")


def engine_state(since):
    """A made-up engine of 20 steps a second: some sequences that generate, now and then a prompt."""
    now = int(20 * (time.monotonic() - STARTED)) + 400
    steps = []
    for n in range(max(since + 1, now - 500), now):
        running = 4 + round(3 * math.sin(n / 23))
        spans = [[i, n - 7 * i, 1] for i in range(running)]
        phase = n % 47
        if phase < 9:
            spans.append([90 + n // 47, 64 * phase, 64 if phase < 8 else 37])
        steps.append({"step": n, "model_ms": 12 + 0.9 * running + (14 if phase < 9 else 0) + n % 3, "other_ms": 0.7,
                      "running": running, "waiting": 1 if phase < 4 else 0, "spans": spans})
    used = 300 + now % 350
    return {
        "model": MODEL, "state": "ready", "uptime_s": now / 20, "waiting": 1 if now % 47 < 4 else 0, "running": 5,
        "pages": [{"total": 1024, "free": 1024 - used}, {"total": 256, "free": 214}],
        "anchors": {"total": 96, "free": 31}, "cached_chunks": used - 40, "restore_points": 38,
        "counters": {"steps": now, "rows": now * 10, "decode_rows": now * 4, "prompt_rows": now * 6, "submitted": 131,
                     "refused": 1, "finished": 121, "cancelled": 4, "failed": 0, "preemptions": 2},
        "cache": {"queried_tokens": 52310, "hit_tokens": 33904, "evictions": 17,
                  "reasons": {"full": 61, "diverged": 48, "no_anchor": 14, "evicted": 8, "damaged": 0}},
        "steps": steps,
    }


STARTED = time.monotonic()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):  # noqa: N802
        url = urlsplit(self.path)
        page = self.server.page
        if url.path == "/":
            policy = (page / "web_page.csp").read_text()
            return self.send(200, (page / "web_page.html").read_text(), "text/html", {"Content-Security-Policy": policy})
        if url.path == "/v1/models":
            return self.send(200, json.dumps({"data": [{"id": MODEL["name"], "context_length": MODEL["context"]}]}))
        if url.path == "/engine":
            return self.send(200, json.dumps(engine_state(int(parse_qs(url.query)["since"][0]))))
        if url.path == "/blank":
            return self.send(200, "<!doctype html><title>blank</title>", "text/html")
        if url.path.startswith("/src/") and url.path.endswith(".js"):
            return self.send(200, (SOURCES / Path(url.path).name).read_text(), "text/javascript")
        return self.send(404, json.dumps({"error": {"message": f"no {url.path}"}}))

    def do_POST(self):  # noqa: N802
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append({"body": body, "key": self.headers.get("Authorization")})
        try:
            answer_to(Answer(self, body), self.server)
        except (BrokenPipeError, ConnectionResetError):
            self.server.gone += 1
            self.close_connection = True

    def send(self, status, text, kind="application/json", headers=None):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def start_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def data(self, text):
        self.chunk(f"data: {text}\n\n".encode())

    def event(self, value):
        self.data(json.dumps(value))

    def end_stream(self):
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_):
        pass


class MockServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, page, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.page = Path(page)
        self.requests = []  # chat completions: {body, key}
        self.gone = 0  # answers whose client went away
        self.refused = set()

    def once(self):
        """True the first time after a reset."""
        first = not self.refused
        self.refused.add(1)
        return first

    def reset(self):
        self.requests.clear()
        self.refused.clear()
        self.gone = 0

    def handle_error(self, *_):
        pass  # connections that the browser drops

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def run_in_thread(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self


if __name__ == "__main__":
    server = MockServer(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8080)
    print(server.url, flush=True)
    server.serve_forever()

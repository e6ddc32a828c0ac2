#!/usr/bin/env python3
"""What the replies of anthropic_test and responses_test say, against the types of the official Python clients.

    tests/dialect_types_test.py ANTHROPIC_TEST RESPONSES_TEST

The two programs write their streams and bodies into a folder. Every event is validated, with nothing coerced, and whole
streams are read by the clients themselves, over HTTP, into the same answer as the body. Exit code 77, for CTest
"Skipped", without the packages anthropic and openai.
"""

import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

try:
    import anthropic
    import anthropic.types
    import openai
    import openai.types.responses
    import pydantic
except ImportError as error:
    print(f"SKIPPED: {error}; pip install anthropic openai", file=sys.stderr)
    sys.exit(77)

MESSAGE_EVENT = pydantic.TypeAdapter(anthropic.types.RawMessageStreamEvent)
MESSAGE = pydantic.TypeAdapter(anthropic.types.Message)
RESPONSE_EVENT = pydantic.TypeAdapter(openai.types.responses.ResponseStreamEvent)
RESPONSE = pydantic.TypeAdapter(openai.types.responses.Response)


def validate(adapter, data):
    return adapter.validate_json(json.dumps(data), strict=True)


def events_of(path):
    """(name, data) of every event."""
    for block in path.read_text().split("\n\n")[:-1]:
        name, data = block.split("\n")
        yield name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


class Server:
    """Answers every request with the contents of one file."""

    def __init__(self):
        self.file = None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                status = 200
                if outer.file.suffix == ".error":
                    status = int(outer.file.stem.rsplit("_", 1)[1])
                content = outer.file.read_bytes()
                self.send_response(status)
                streams = outer.file.suffix == ".stream"
                self.send_header("content-type", "text/event-stream" if streams else "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


def without(data, *names):
    return {name: value for name, value in data.items() if name not in names}


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def check_messages(stream, server):
    for name, data in events_of(stream):
        expect(data["type"] == name, name)
        if name not in ("ping", "error"):
            validate(MESSAGE_EVENT, data)
    client = anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0)
    request = dict(model="k3", max_tokens=10, messages=[{"role": "user", "content": "Hi"}])
    server.file = stream
    if stream.stem.endswith("_fault"):
        try:
            with client.messages.stream(**request) as events:
                events.until_done()
        except anthropic.APIStatusError as error:
            expect("the device has stopped" in str(error), error)
            return
        raise AssertionError("a fault that the client doesn't see")
    body = json.loads(stream.with_suffix(".json").read_text())
    validate(MESSAGE, body)
    with client.messages.stream(**request) as events:
        final = events.get_final_message().to_dict()
    server.file = stream.with_suffix(".json")
    whole = client.messages.create(**request).to_dict()
    expect(whole == body, f"{whole}\n{body}")
    expect(without(final, "timings", "stop_details") == without(body, "timings"), f"{final}\n{body}")


def check_responses(stream, server):
    types = []
    for name, data in events_of(stream):
        expect(data["type"] == name, name)
        validate(RESPONSE_EVENT, data)
        types.append(name)
    client = openai.OpenAI(base_url=server.url, api_key="k", max_retries=0)
    server.file = stream
    with client.responses.stream(model="k3", input="Hi") as events:
        seen = list(events)
    expect([event.type for event in seen] == types, types)
    if stream.stem.endswith("_fault"):
        return
    body = json.loads(stream.with_suffix(".json").read_text())
    validate(RESPONSE, body)
    expect(seen[-1].response.id == body["id"], body)
    server.file = stream.with_suffix(".json")
    whole = client.responses.create(model="k3", input="Hi")
    expect(whole.to_dict() == body, f"{whole}\n{body}")
    if types[-1] == "response.completed":
        server.file = stream
        with client.responses.stream(model="k3", input="Hi") as events:
            final = events.get_final_response()
        expect(final.output_text == whole.output_text, final)
        expect([item.id for item in final.output] == [item.id for item in whole.output], final)


def check_error(file, server):
    client = anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0)
    server.file = file
    try:
        client.messages.create(model="k3", max_tokens=10, messages=[{"role": "user", "content": "Hi"}])
    except anthropic.APIStatusError as error:
        expect(f"_{error.status_code}" in file.stem, file)
        expect(error.body == json.loads(file.read_text()), error.body)
        return
    raise AssertionError(f"{file}: no error")


def main():
    server = Server()
    checks = {"anthropic": check_messages, "responses": check_responses}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for program in sys.argv[1:3]:
            subprocess.run(
                [program], check=True, stdout=subprocess.DEVNULL, env={**os.environ, "WEIR_DIALECT_CAPTURES": name}
            )
        checked = dict.fromkeys(checks, 0)
        for stream in sorted(folder.glob("*.stream")):
            dialect = stream.name.split("_")[0]
            try:
                checks[dialect](stream, server)
            except Exception:
                print(f"{stream.name}:\n{stream.read_text()}", file=sys.stderr)
                raise
            checked[dialect] += 1
        errors = sorted(folder.glob("*.error"))
        for file in errors:
            check_error(file, server)
    expect(all(count >= 8 for count in checked.values()) and errors, f"too few captures: {checked}, {len(errors)} errors")
    print(f"{checked} streams, {len(errors)} errors; anthropic {anthropic.__version__}, openai {openai.__version__}")


if __name__ == "__main__":
    main()

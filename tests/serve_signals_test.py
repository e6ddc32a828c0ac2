#!/usr/bin/env python3
"""How `weir serve` starts and ends: serve_signals_test.py WEIR."""

import http.client
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

MODEL = pathlib.Path(__file__).resolve().parent / "fixtures/kimi_k3/k3-tiny"
WEIR = None


class Server:
    def __init__(self, *options):
        self.process = subprocess.Popen(
            [WEIR, "serve", str(MODEL), "--port", "0", "--threads", "1", "--max-tokens", "4096", *options],
            stderr=subprocess.PIPE, text=True)
        self.said = []
        for line in self.process.stderr:
            self.said.append(line)
            if found := re.search(r"http://([\d.]+):(\d+)", line):
                self.port = int(found[2])
                return
        raise AssertionError("did not start: " + "".join(self.said))

    def stream(self, tokens):
        """A response of which the first chunk has come, and its connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/chat/completions", json.dumps(
            {"messages": [{"role": "user", "content": "On and on"}], "stream": True, "ignore_eos": True,
             "max_tokens": tokens}))
        response = connection.getresponse()
        response.readline()
        return response, connection

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self):
        code = self.process.wait(60)
        self.process.stderr.close()
        return code


class ServeTest(unittest.TestCase):
    def test_a_signal_lets_running_requests_end(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            server = Server("--drain-seconds", "600")
            response, connection = server.stream(1500)
            server.signal(number)
            rest = response.read().decode()
            connection.close()
            self.assertTrue(rest.endswith("data: [DONE]\n\n"), rest[-300:])
            self.assertEqual(rest.count('"finish_reason":"length"'), 1)
            self.assertEqual(server.wait(), 0)

    def test_nobody_new_is_let_in_while_they_do(self):
        server = Server("--drain-seconds", "600")
        response, connection = server.stream(3500)
        server.signal(signal.SIGTERM)
        refused = False
        while not refused and server.process.poll() is None:
            other = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
            try:
                other.request("GET", "/health/ready")
                refused = other.getresponse().status == 503
            except OSError:
                refused = True
            other.close()
        self.assertTrue(refused)
        self.assertIn("[DONE]", response.read().decode())
        connection.close()
        self.assertEqual(server.wait(), 0)

    def test_after_the_limit_they_end_with_an_error(self):
        server = Server("--drain-seconds", "0")
        response, connection = server.stream(3900)
        server.signal(signal.SIGTERM)
        rest = response.read().decode()
        connection.close()
        self.assertIn("the server is shutting down", rest.splitlines()[-2])
        self.assertNotIn("[DONE]", rest)
        self.assertEqual(server.wait(), 0)

    def test_a_second_signal_ends_at_once(self):
        server = Server("--drain-seconds", "600")
        response, connection = server.stream(3900)
        server.signal(signal.SIGTERM)
        time.sleep(0.1)
        server.signal(signal.SIGTERM)
        self.assertEqual(server.wait(), 128 + signal.SIGTERM)
        connection.close()
        response.close()

    def test_what_is_wrong_is_said_in_one_line(self):
        server = Server()
        for options, words in ((["--port", str(server.port)], str(server.port)),
                               (["--api-key-file", "/nowhere/keys"], "/nowhere/keys"),
                               (["--host", "no.such.host.example"], "no.such.host.example")):
            result = subprocess.run([WEIR, "serve", str(MODEL), *options], capture_output=True, text=True, timeout=60)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn(words, result.stderr.splitlines()[-1])
        server.signal(signal.SIGTERM)
        self.assertEqual(server.wait(), 0)

    def test_keys_come_from_a_file(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("# ours\n\nsecret\n")
            keys.flush()
            server = Server("--api-key-file", keys.name)
            for key, status in ((None, 401), ("secret", 200)):
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
                connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"} if key else {})
                self.assertEqual(connection.getresponse().status, status)
                connection.close()
            server.signal(signal.SIGTERM)
            self.assertEqual(server.wait(), 0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    WEIR = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)

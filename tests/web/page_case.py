"""What the tests of the web page share: a browser, and what it looks at."""

import json
import unittest

from browser import Browser
from mock_server import MockServer

PHONE = (390, 800)
DESKTOP = (1280, 800)


def scripted(test):
    """Marks tests that need the answers of mock_server."""
    test.scripted = True
    return test


class Case(unittest.TestCase):
    url = None  # of a running server; else
    server = None  # scripted answers
    page = None

    @classmethod
    def open(cls, url, folder):
        cls.url = url
        cls.server = None if url else MockServer(folder).run_in_thread()
        cls.page = Browser(url or cls.server.url, 120 if url else 20)

    @classmethod
    def close(cls):
        cls.page.close()

    def setUp(self):
        method = getattr(self, self._testMethodName)
        if self.url and (hasattr(method, "scripted") or hasattr(type(self), "scripted")):
            self.skipTest("needs scripted answers")
        if self.server:
            self.server.reset()
        self.page.size(*DESKTOP)
        self.page.media(prefers_color_scheme="light", prefers_reduced_motion="no-preference")
        # A running server need not answer at length.
        self.page.fresh(json.dumps({"max_tokens": "24"} if self.url else {}))
        self.page.driver.get_log("browser")

    def tearDown(self):
        # Nothing the page does may break its policy, or throw.
        log = [entry["message"] for entry in self.page.driver.get_log("browser")]
        self.assertEqual([m for m in log if "Content Security" in m or "Uncaught" in m or "Trusted" in m], [])

    def sent(self, index=-1):
        """The body of a request for an answer."""
        return self.server.requests[index]["body"]

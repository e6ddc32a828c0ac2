"""Tools, errors, settings, the engine view."""

import json

import mock_server
from browser import Keys
from page_case import Case, scripted


@scripted
class Tools(Case):
    def test_calls_are_shown_and_their_results_sent(self):
        self.page.send("tool both")
        self.assertEqual(self.page.text(".call:first-child h3 code"), "get_weather")
        self.assertEqual(json.loads(self.page.text(".call:first-child .arguments")), {"place": "Oslo", "days": 2})
        self.page.all(".call textarea")[0].send_keys("rain", Keys.SHIFT, Keys.ENTER, Keys.SHIFT, "4 degrees", Keys.ENTER)
        self.page.keys("high at nine", Keys.ENTER)
        self.page.wait_for_answer()
        _, answer, first, second = self.sent()["messages"]
        self.assertEqual([c["function"]["arguments"] for c in answer["tool_calls"]],
                         [c["arguments"] for c in mock_server.BOTH])
        self.assertEqual(first, {"role": "tool", "tool_call_id": "call_1", "content": "rain\n4 degrees"})
        self.assertEqual(second, {"role": "tool", "tool_call_id": "call_2", "content": "high at nine"})
        self.assertEqual(self.page.messages()[2], ["answer", "The tool says: high at nine"])
        self.assertEqual(self.page.text(".result pre"), "high at nine")

    def test_a_message_instead_of_results_goes_on(self):
        self.page.send("tool")
        self.page.send("never mind")
        self.assertEqual([m["role"] for m in self.sent()["messages"]], ["user", "assistant", "tool", "user"])

    def test_tools_are_declared_as_json(self):
        self.page.press("Settings")
        box = self.page.one("#set-tools")
        box.send_keys("[{")
        self.assertEqual(box.get_attribute("aria-invalid"), "true")
        self.assertTrue(self.page.text("#error-tools"))
        box.send_keys(Keys.CONTROL + "a", Keys.NULL, '[{"type": "function"}]')
        self.assertIn("Tool 1", self.page.text("#error-tools"))
        self.page.press("Insert an example")
        self.assertEqual(self.page.text("#error-tools"), "")
        self.page.press("Close the settings")
        self.page.send("hello")
        self.assertEqual(self.sent()["tools"][0]["function"]["name"], "get_weather")


@scripted
class Errors(Case):
    def test_a_refusal_is_shown_with_its_reason(self):
        self.page.send("refuse 400")
        self.assertIn("refused the request (400)", self.page.text(".error"))
        self.assertIn("expected a number of 0 to 1, found 7", self.page.text(".error"))
        self.page.send("refuse 429")
        self.assertIn("busy (429)", self.page.text(".message:last-child .error"))
        self.assertIn("Try again in 3 s.", self.page.text(".message:last-child .error"))

    def test_retry_asks_again(self):
        self.page.send("once more")
        self.assertTrue(self.page.shown(".error"))
        self.page.press("Try again")
        self.page.wait_for_answer()
        self.assertFalse(self.page.shown(".error"))
        self.assertEqual(self.page.messages(), [["user", "once more"], ["answer", "You said: once more"]])
        self.assertEqual(self.sent(0)["messages"], self.sent(1)["messages"])

    def test_a_broken_answer_keeps_what_came(self):
        for text, came, reason in (("fault", "Half of an answer", "the logits are not finite"),
                                   ("drop", "Cut in the", "connection was lost"),
                                   ("silent", "Ends without saying so", "before the answer was complete")):
            self.page.send(text)
            self.assertEqual(self.page.messages()[-1][1], came)
            self.assertIn(reason, self.page.text(".message:last-child .error"))
            self.assertTrue(self.page.shown(".message:last-child .retry"))

    def test_a_server_that_is_gone(self):
        self.page.driver.execute_cdp_cmd("Network.enable", {})
        offline = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self.page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": True, **offline})
        self.page.send("anyone there?")
        self.page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {
            "offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1})
        self.assertIn("can't be reached", self.page.text(".error"))

    def test_a_browser_that_stores_nothing(self):
        self.page.run("Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }")
        self.page.send("not stored")
        self.assertTrue(self.page.shown("#unsaved"))
        self.page.send("still here")
        self.assertEqual(len(self.page.messages()), 4)

    def test_old_conversations_make_room(self):
        # Room for two of three: each message is some 100,000 characters.
        self.page.run("""const set = Storage.prototype.setItem;
            Storage.prototype.setItem = function (name, value) {
              const others = Object.keys(this).filter((key) => key !== name);
              const used = others.reduce((sum, key) => sum + this.getItem(key).length, 0);
              if (used + value.length > 250000) throw new DOMException('full', 'QuotaExceededError');
              set.call(this, name, value);
            }""")
        for name in ("oldest", "middle", "newest"):
            self.page.press("New conversation")
            self.page.run("document.getElementById('prompt').value = arguments[0].padEnd(100000, ' x')", f"short: {name}\n")
            self.page.send("")
        self.assertEqual([e.text for e in self.page.all(".entry .title")], ["short: newest", "short: middle"])
        self.assertFalse(self.page.shown("#unsaved"))


class SettingsDialog(Case):
    @scripted
    def test_settings_reach_the_request(self):
        self.page.press("Settings")
        for name, value in (("system", "Be brief."), ("temperature", "0.5"), ("top_p", "0.9"), ("top_k", "40"),
                            ("min_p", "0.05"), ("max_tokens", "64"), ("seed", "7"), ("key", "secret")):
            self.page.one(f"#set-{name}").send_keys(value)
        self.page.one("#set-effort").send_keys("high")
        self.page.keys(Keys.ESCAPE)
        self.page.reload()
        self.page.send("hello")
        body = self.sent()
        wanted = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "max_tokens": 64, "seed": 7,
                  "reasoning_effort": "high", "model": "mock-1"}
        self.assertEqual({name: body.get(name) for name in wanted}, wanted)
        self.assertEqual(body["messages"][0], {"role": "system", "content": "Be brief."})
        self.assertEqual(self.server.requests[-1]["key"], "Bearer secret")
        self.assertNotIn("secret", self.page.run("return JSON.stringify({...localStorage})"))

    @scripted
    def test_a_value_out_of_range_is_not_sent(self):
        self.page.press("Settings")
        self.page.one("#set-top_p").send_keys("7")
        self.assertTrue(self.page.text("#error-top_p"))
        self.page.keys(Keys.ESCAPE)
        self.page.send("hello")
        self.assertNotIn("top_p", self.sent())


class EngineView(Case):
    def pixels(self):
        return self.page.run("return document.getElementById('spans').toDataURL()")

    def test_it_follows_the_engine(self):
        self.page.press("Engine")
        self.page.until(lambda: self.page.text("#running") != "–", "the first figures")
        self.page.until(lambda: self.page.text("#decode-rate") != "–", "rates")
        self.assertIn("up ", self.page.text("#engine-state"))
        self.assertGreaterEqual(len(self.page.all("#gauges [role=meter]")), 1)
        before = self.pixels(), self.page.text("#step-text")
        if self.url:
            self.page.send("Hello")
        self.page.until(lambda: self.pixels() != before[0], "new steps drawn")
        self.page.until(lambda: self.page.text("#step-text") != before[1], "new steps told")
        if self.server:
            self.assertEqual(self.page.text("#hit-rate"), "65%")
            self.assertIn("no restore point further on14", self.page.text("#reasons"))
            self.assertEqual(self.page.text("#counter-finished"), "121")
            self.assertEqual(self.page.text("#decode-rate"), "80")

    @scripted
    def test_steps_can_be_walked_through(self):
        self.page.press("Engine")
        self.page.until(lambda: self.page.text("#step-text").startswith("Step "), "steps")
        self.page.run("document.getElementById('spans').focus()")
        self.page.keys(Keys.ARROW_LEFT)
        chosen = int(self.page.text("#step-text").split()[1])
        self.page.keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
        self.assertEqual(int(self.page.text("#step-text").split()[1]), chosen - 2)

    def test_it_asks_only_while_it_is_shown(self):
        asked = "return performance.getEntriesByType('resource').filter((e) => e.name.includes('/engine')).length"
        self.page.press("Engine")
        self.page.until(lambda: self.page.run(asked) > 1, "polls")
        self.page.press("Close the engine view")
        self.assertFalse(self.page.shown("#engine"))
        self.page.until(lambda: not self.page.run("return document.body.classList.contains('with-engine')"), "closed")
        before = self.page.run(asked)
        self.page.driver.execute_async_script("setTimeout(arguments[0], 1300)")
        self.assertLessEqual(self.page.run(asked), before + 1)  # one may have been under way

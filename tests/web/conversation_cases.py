"""Messages, answers and the list of conversations."""

import mock_server
from browser import Keys
from page_case import Case, scripted


class Conversation(Case):
    def test_an_answer_follows_a_message(self):
        self.page.send("Hello, weir")
        kinds = self.page.messages()
        self.assertEqual(kinds[0], ["user", "Hello, weir"])
        self.assertEqual(kinds[1][0], "answer")
        self.assertTrue(kinds[1][1])
        self.assertIn("Hello, weir", self.page.driver.title)
        if self.server:
            self.assertEqual(kinds[1][1], "You said: Hello, weir")
            self.assertEqual(self.sent()["messages"], [{"role": "user", "content": "Hello, weir"}])
            self.assertTrue(self.sent()["stream_options"]["include_usage"])

    def test_the_whole_conversation_is_sent(self):
        self.page.send("one")
        self.page.send("two")
        self.assertEqual([kind for kind, _ in self.page.messages()], ["user", "answer"] * 2)
        if self.server:
            self.assertEqual([m["content"] for m in self.sent()["messages"]], ["one", "You said: one", "two"])

    @scripted
    def test_text_is_shown_as_it_comes(self):
        self.page.send("slow", wait=False)
        self.page.until(lambda: len(self.page.text(".prose")) > 20, "the first words")
        before = self.page.text(".prose")
        self.assertEqual(self.page.one(".answer").get_attribute("aria-busy"), "true")
        self.page.until(lambda: len(self.page.text(".prose")) > len(before), "more words")
        self.assertTrue(self.page.text(".prose").startswith(before))
        self.page.press("Stop")
        self.page.wait_for_answer()

    def test_escape_stops(self):
        self.page.send("slow, please: count to a thousand", wait=False)
        self.page.until(lambda: len(self.page.text(".prose")) > 0, "the first words")
        if self.page.running():  # a short answer of a running server may be over
            self.page.keys(Keys.ESCAPE)
            self.page.wait_for_answer()
        if self.server:
            self.assertIn("stopped", self.page.text(".stats summary"))
            self.page.until(lambda: self.server.gone == 1, "the server's end of it")
        self.assertTrue(self.page.messages()[1][1])

    def test_regenerate_asks_again(self):
        self.page.send("again")
        self.page.press("Regenerate")
        self.page.wait_for_answer()
        self.assertEqual(len(self.page.messages()), 2)
        if self.server:
            self.assertEqual(self.sent(0)["messages"], self.sent(1)["messages"])
            self.assertNotEqual(self.sent(0)["seed"], self.sent(1)["seed"])

    def test_an_edited_message_replaces_what_followed(self):
        for text in ("first", "second"):
            self.page.send(text)
        self.page.press("Edit", within=".message:first-child")
        area = self.page.one(".edit textarea")
        self.assertEqual(area.get_attribute("value"), "first")
        area.send_keys(Keys.ESCAPE)
        self.assertEqual(len(self.page.messages()), 4)
        self.page.press("Edit", within=".message:first-child")
        self.page.keys(" of all", Keys.ENTER)
        self.page.wait_for_answer()
        self.assertEqual(self.page.messages()[0], ["user", "first of all"])
        self.assertEqual(len(self.page.messages()), 2)

    @scripted
    def test_reasoning_is_folded(self):
        self.page.send("reason")
        details = self.page.one(".reasoning")
        self.assertRegex(self.page.text(".reasoning summary"), r"^Reasoned for \d+")
        self.assertFalse(self.page.shown(".thoughts"))
        details.find_element("css selector", "summary").click()
        self.assertTrue(self.page.shown(".thoughts"))
        self.assertEqual(self.page.text(".thoughts"), mock_server.REASONING)
        self.assertEqual(self.page.messages()[1][1], "About 5.6 m³/s pass over it.")
        self.page.send("and now?")
        self.assertEqual(self.sent()["messages"][1]["reasoning_content"], mock_server.REASONING)

    @scripted
    def test_what_an_answer_cost_is_shown(self):
        self.page.send("one")
        self.page.send("two")
        line = self.page.text(".stats summary")
        self.assertRegex(line, r"^3 tokens · 26\.7 tokens/s · first after [\d.]+ m?s · 32 of 48 cached$")
        self.assertIn("no restore point further on", self.page.text(".stats dl"))
        self.assertIn(str(self.sent()["seed"]), self.page.text(".stats dl"))

    @scripted
    def test_bytes_may_come_one_by_one(self):
        self.page.send("crumbs")
        self.assertEqual(self.page.messages()[1][1], "Fuß, naïve, 水, 🌊 – done")
        self.assertFalse(self.page.shown(".error"))

    def test_messages_are_deleted_and_brought_back(self):
        for text in ("first", "second"):
            self.page.send(text)
        self.page.press("Delete", within=".message:first-child")
        self.assertEqual([m[1] for m in self.page.messages() if m[0] == "user"], ["second"])
        self.page.press("Undo")
        self.assertEqual(len(self.page.messages()), 4)

    def test_reload_keeps_conversations(self):
        self.page.send("kept")
        self.page.press("New conversation")
        self.assertEqual(self.page.messages(), [])
        self.page.send("kept too")
        before = self.page.messages()
        self.page.reload()
        self.assertEqual(self.page.messages(), before)
        self.page.press("kept")
        self.assertEqual(self.page.messages()[0], ["user", "kept"])
        self.page.press("Delete the conversation kept")
        self.page.press("Delete the conversation kept too")
        self.assertEqual(self.page.all(".entry"), [])
        self.page.press("Undo")
        self.assertEqual(self.page.messages(), before)

    @scripted
    def test_an_answer_survives_a_reload_in_its_middle(self):
        self.page.send("slow", wait=False)
        self.page.until(lambda: "drop 20" in self.page.text(".prose"), "some words")
        self.page.reload()
        self.assertIn("drop 20", self.page.messages()[1][1])
        self.assertTrue(self.page.text(".stats summary").startswith("interrupted"))
        self.assertFalse(self.page.shown(".error"))

    @scripted
    def test_an_answer_goes_on_while_another_conversation_is_shown(self):
        self.page.send("reason", wait=False)
        self.page.press("New conversation")
        self.page.send("meanwhile")
        self.assertEqual(self.page.messages()[1][1], "You said: meanwhile")
        self.page.press("reason")
        self.page.wait_for_answer()
        self.assertEqual(self.page.messages()[1][1], "About 5.6 m³/s pass over it.")

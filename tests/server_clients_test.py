#!/usr/bin/env python3
"""The official clients against the server, unchanged.

server_clients_test.py REPLAY_SERVER WEIR: with answers that are given (Kimi K3's golden ones) and with a tiny model.
Exit code 77 when a client's package is missing.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

try:
    import openai
except ImportError:
    print("SKIPPED: the openai package is not installed (pip install openai)")
    sys.exit(77)
try:
    import anthropic
except ImportError:
    anthropic = None  # its cases are skipped, which unittest says

ROOT = pathlib.Path(__file__).resolve().parent
K3 = ROOT / "fixtures/kimi_k3"
REPLAY_SERVER, WEIR = (None, None)

TOOLS = [{"type": "function",
          "function": {"name": "get_weather", "description": "Weather of a city",
                       "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]


class Server:
    """A process that says its address on the first line that has one."""

    def __init__(self, command, stream):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, **{stream: subprocess.PIPE})
        pipe = getattr(self.process, stream)
        self.url = None
        for line in pipe:
            if found := re.search(r"http://\S+", line):
                self.url = found[0]
                break
        assert self.url, "the server did not start"

    def end(self):
        self.process.stdin.close()
        self.process.terminate()
        code = self.process.wait(30)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()
        return code


def client_of(server, **more):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60, **more)


def collected(stream):
    """A stream's first choice put together."""
    out = {"content": "", "reasoning": "", "calls": [], "finish": None, "logprobs": [], "usage": None}
    for chunk in stream:
        out["usage"] = chunk.usage or out["usage"]
        for choice in chunk.choices:
            delta = choice.delta
            out["content"] += delta.content or ""
            out["reasoning"] += getattr(delta, "reasoning_content", None) or ""
            for call in delta.tool_calls or []:
                if call.id:
                    out["calls"].append([call.id, call.function.name, ""])
                out["calls"][call.index][2] += call.function.arguments or ""
            if choice.logprobs:
                out["logprobs"] += choice.logprobs.content
            out["finish"] = choice.finish_reason or out["finish"]
    return out


class GivenAnswers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cases = json.loads((K3 / "text/chat_k3.json").read_text())["parse"]
        for case in cls.cases:
            case["name"] = case["name"].strip("[")
        answers = {c["name"]: {"ids": c["ids"]} for c in cls.cases if c["ids"]}
        answers["fault"] = {"ids": cls.cases[0]["ids"][:5], "error": "broken on purpose"}
        cls.file = tempfile.NamedTemporaryFile("w", suffix=".json")
        json.dump(answers, cls.file)
        cls.file.flush()
        cls.server = Server([REPLAY_SERVER, str(K3 / "text"), cls.file.name], "stdout")
        cls.client = client_of(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.end()
        cls.file.close()

    def ask(self, name, **more):
        return self.client.chat.completions.create(
            model="replay", messages=[{"role": "user", "content": f"[[{name}]]"}], **more)

    def test_golden_answers_arrive_whole_and_in_pieces(self):
        for case in self.cases:
            if not case["ids"]:
                continue
            with self.subTest(case["name"]):
                thinking = {"chat_template_kwargs": {"thinking": case["start"] == "think"}}
                parsed = case["parsed"]
                choice = self.ask(case["name"], extra_body=thinking).choices[0]
                message = choice.message
                calls = [(c.function.name, c.function.arguments) for c in message.tool_calls or []]
                self.assertEqual(calls, [(c["name"], c["arguments"]) for c in parsed["tool_calls"]])
                self.assertEqual(message.content or "", parsed["content"] or "")
                self.assertEqual(getattr(message, "reasoning_content", "") or "", parsed["reasoning"] or "")
                self.assertEqual(choice.finish_reason, parsed["finish_reason"])
                pieces = collected(self.ask(case["name"], extra_body=thinking, stream=True))
                self.assertEqual(pieces["content"], message.content or "")
                self.assertEqual(pieces["reasoning"], parsed["reasoning"] or "")
                self.assertEqual(pieces["finish"], choice.finish_reason)
                whole = [tuple(c[1:]) for c in pieces["calls"]]
                if case["name"] == "repeated argument key":  # what was sent can't be taken back; JSON's last one counts
                    whole, calls = ([(n, json.loads(a)) for n, a in both] for both in (whole, calls))
                self.assertEqual(whole[:len(calls)], calls)  # one that was cut may follow
                self.assertTrue(len(whole) == len(calls) or choice.finish_reason == "length")

    def test_tools_and_their_results(self):
        first = self.ask("one call", tools=TOOLS).choices[0]
        self.assertEqual(first.finish_reason, "tool_calls")
        call = first.message.tool_calls[0]
        self.assertEqual(call.function.name, "get_weather")
        self.assertEqual(json.loads(call.function.arguments)["city"], "Paris")
        messages = [{"role": "user", "content": "[[one call]]"}, first.message,
                    {"role": "tool", "tool_call_id": call.id, "content": "sunny [[plain answer]]"}]
        second = self.client.chat.completions.create(model="replay", messages=messages, tools=TOOLS)
        self.assertEqual(second.choices[0].message.content, "Hello!")
        self.assertEqual(second.choices[0].finish_reason, "stop")

    def test_stream_helper_sees_the_same(self):
        with self.client.chat.completions.stream(
                model="replay", messages=[{"role": "user", "content": "[[plain answer]]"}]) as stream:
            self.assertEqual(stream.get_final_completion().choices[0].message.content, "Hello!")

    def test_usage_comes_last(self):
        out = collected(self.ask("plain answer", stream=True, stream_options={"include_usage": True}))
        self.assertGreater(out["usage"].prompt_tokens, 5)
        self.assertGreater(out["usage"].completion_tokens_details.reasoning_tokens, 0)

    def test_responses(self):
        responses = self.client.responses
        first = responses.create(model="replay", input="[[plain answer]]")
        self.assertEqual((first.status, first.output_text), ("completed", "Hello!"))
        self.assertEqual(responses.retrieve(first.id).output_text, "Hello!")
        called = responses.create(model="replay", input="[[one call]]", previous_response_id=first.id,
                                  tools=[{"type": "function", **TOOLS[0]["function"]}])
        call = next(item for item in called.output if item.type == "function_call")
        self.assertEqual((call.name, json.loads(call.arguments)["city"]), ("get_weather", "Paris"))
        with responses.stream(model="replay", previous_response_id=called.id, input=[
                {"type": "function_call_output", "call_id": call.call_id, "output": "[[plain answer]]"}]) as stream:
            events = list(stream)
            self.assertEqual(stream.get_final_response().output_text, "Hello!")
        self.assertEqual([e.sequence_number for e in events], sorted({e.sequence_number for e in events}))
        responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            responses.retrieve(first.id)

    @unittest.skipUnless(anthropic, "the anthropic package is not installed (pip install anthropic)")
    def test_messages(self):
        with anthropic.Anthropic(base_url=self.server.url, api_key="none", max_retries=0, timeout=60) as client:
            def body(name, **more):
                return {"model": "replay", "max_tokens": 500, "messages": [{"role": "user", "content": f"[[{name}]]"}],
                        **more}
            tools = [{"name": "get_weather", "input_schema": {"type": "object", "properties": {}}}]
            thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
            plain = client.messages.create(**body("plain answer", **thinking) | {"max_tokens": 2000})
            self.assertEqual([b.type for b in plain.content], ["thinking", "text"])
            self.assertEqual((plain.content[1].text, plain.stop_reason), ("Hello!", "end_turn"))
            call = client.messages.create(**body("one call", tools=tools)).content[-1]
            self.assertEqual((call.name, call.input["city"]), ("get_weather", "Paris"))
            with client.messages.stream(**body("one call", tools=tools)) as stream:
                final = stream.get_final_message()
            self.assertEqual((final.content[-1].input, final.stop_reason), (call.input, "tool_use"))
            counted = client.messages.count_tokens(model="replay", messages=body("plain answer")["messages"])
            self.assertGreater(counted.input_tokens, 5)
            with self.assertRaises(anthropic.BadRequestError) as bad:
                client.messages.create(**body("plain answer") | {"max_tokens": 0})
            self.assertEqual(bad.exception.body["type"], "error")
            with self.assertRaises(anthropic.NotFoundError):
                client.messages.create(**body("plain answer") | {"model": "claude"})
            with self.assertRaises(anthropic.APIStatusError):
                client.messages.create(**body("fault"))

    def test_errors_are_the_clients_exceptions(self):
        with self.assertRaises(openai.BadRequestError) as bad:
            self.ask("plain answer", temperature=-1)
        self.assertEqual(bad.exception.param, "temperature")
        with self.assertRaises(openai.NotFoundError) as unknown:
            self.client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])
        self.assertEqual(unknown.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as long:
            self.ask("plain answer " * 10000)
        self.assertEqual(long.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.InternalServerError):
            self.ask("fault")
        with self.assertRaisesRegex(openai.APIError, "broken on purpose"):
            collected(self.ask("fault", stream=True))


class HermesAnswers(unittest.TestCase):
    """A model behind a template, with tool calls as JSON between tags."""

    CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.folder.name)
        templates = json.loads((ROOT / "fixtures/chat/chat.json").read_text())["templates"]
        template = next(t["template"] for t in templates if t["name"] == "chatml_tools")
        (folder / "tokenizer.json").write_bytes((ROOT / "fixtures/tokenizers/qwen2/tokenizer.json").read_bytes())
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"chat_template": template, "eos_token": "<|im_end|>"}))
        (folder / "answers.json").write_text(json.dumps({
            "words": {"text": "Good day \U0001F600!<|im_end|>"},
            "calls": {"text": f"Let me see.\n{cls.CALL}\n{cls.CALL.replace('Paris', 'Rome')}<|im_end|>"},
            "sunny": {"text": "<think>\nSo it is.\n</think>\n\nIt is sunny.<|im_end|>"}}))
        cls.server = Server([REPLAY_SERVER, str(folder), str(folder / "answers.json")], "stdout")
        cls.client = client_of(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.end()
        cls.folder.cleanup()

    def both(self, messages, **more):
        """The choice in one piece and put together from a stream."""
        def ask(**how):
            return self.client.chat.completions.create(model="replay", messages=messages, **more, **how)
        return ask().choices[0], collected(ask(stream=True))

    def test_words(self):
        whole, pieces = self.both([{"role": "user", "content": "[[words]]"}])
        self.assertEqual(whole.message.content, "Good day \U0001F600!")
        self.assertEqual(pieces["content"], whole.message.content)
        self.assertEqual((whole.finish_reason, pieces["finish"]), ("stop", "stop"))

    def test_tools_and_their_results(self):
        question = [{"role": "user", "content": "[[calls]]"}]
        whole, pieces = self.both(question, tools=TOOLS)
        self.assertEqual((whole.finish_reason, pieces["finish"]), ("tool_calls", "tool_calls"))
        calls = [(c.function.name, c.function.arguments) for c in whole.message.tool_calls]
        self.assertEqual([(name, json.loads(arguments)["city"]) for name, arguments in calls],
                         [("get_weather", "Paris"), ("get_weather", "Rome")])
        self.assertEqual([tuple(c[1:]) for c in pieces["calls"]], calls)
        self.assertEqual(pieces["content"], whole.message.content)
        results = [{"role": "tool", "tool_call_id": c.id, "content": "[[sunny]]"} for c in whole.message.tool_calls]
        then, pieces = self.both([*question, whole.message, *results], tools=TOOLS)
        self.assertEqual(then.message.content, "It is sunny.")
        self.assertEqual(pieces["content"], "It is sunny.")
        self.assertEqual(pieces["reasoning"], then.message.reasoning_content)


class TinyModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server([WEIR, "serve", str(K3 / "k3-tiny"), "--port", "0", "--threads", "1", "--max-tokens", "4096",
                             "--alias", "gpt-4o"], "stderr")
        cls.client = client_of(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.end() == 0, "SIGTERM ends with 0"

    def ask(self, **more):
        return self.client.chat.completions.create(
            model="k3-tiny", messages=[{"role": "user", "content": "A fox and a well"}], max_tokens=16, **more)

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["k3-tiny", "gpt-4o"])
        self.assertEqual(self.client.models.retrieve("gpt-4o").id, "gpt-4o")

    def test_seeds_and_several_answers(self):
        def texts(**more):
            return [json.dumps(c.message.model_dump()) for c in self.ask(temperature=1, **more).choices]
        self.assertEqual(texts(seed=3, n=3), texts(seed=3, n=3))
        self.assertEqual(texts(seed=3)[0], texts(seed=3, n=2)[0])
        self.assertEqual(len(set(texts(seed=3, n=3))), 3)

    def test_logprobs(self):
        whole = self.ask(logprobs=True, top_logprobs=3).choices[0].logprobs.content
        self.assertEqual(len(whole), 16)
        for entry in whole:
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertEqual(entry.logprob, entry.top_logprobs[0].logprob)  # greedy
        pieces = collected(self.ask(logprobs=True, top_logprobs=3, stream=True))["logprobs"]
        self.assertEqual(pieces, whole)

    def test_completions(self):
        one = self.client.completions.create(model="k3-tiny", prompt=["One", "Two"], max_tokens=8, logprobs=2, n=2,
                                             temperature=0.9, seed=1)
        self.assertEqual(len(one.choices), 4)
        texts = ["", "", "", ""]
        for chunk in self.client.completions.create(model="k3-tiny", prompt=["One", "Two"], max_tokens=8, n=2,
                                                    temperature=0.9, seed=1, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        self.assertEqual(texts, [c.text for c in one.choices])
        self.assertEqual(len(one.choices[0].logprobs.tokens), 8)

    def test_a_stream_can_be_left(self):
        stream = self.client.chat.completions.create(
            model="k3-tiny", messages=[{"role": "user", "content": "On and on"}], max_tokens=2000, stream=True,
            extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.assertEqual(self.ask().choices[0].finish_reason, "length")


class BuiltinModel(unittest.TestCase):
    """What only a trained model shows: it reasons, calls tools with right arguments, and uses what they give."""

    TOOLS = [{"type": "function",
              "function": {"name": "get_weather", "description": "Get the weather of a city.",
                           "parameters": {"type": "object",
                                          "properties": {"city": {"type": "string", "description": "Name of the city."}},
                                          "required": ["city"]}}}]
    WEATHER = '{"city": "Lisbon", "temperature": 21, "sky": "sunny"}'

    @classmethod
    def setUpClass(cls):
        cls.server = Server([WEIR, "serve", "--port", "0", "--max-tokens", "16384", "--temperature", "0"], "stderr")
        cls.client = client_of(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.end() == 0, "SIGTERM ends with 0"

    def ask(self, messages, **more):
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self.client.chat.completions.create(model="tiny-k3", messages=messages, max_tokens=400, **more)

    def test_reasoning(self):
        whole = self.ask("What is 27 + 48?").choices[0].message
        self.assertIn("75", whole.content)
        self.assertTrue(whole.reasoning_content)
        pieces = collected(self.ask("What is 27 + 48?", stream=True))
        self.assertEqual((pieces["content"], pieces["reasoning"]), (whole.content, whole.reasoning_content))
        without = self.ask("What is 27 + 48?", reasoning_effort="none").choices[0].message
        self.assertFalse(getattr(without, "reasoning_content", None))

    def test_a_tool_and_its_result(self):
        question = [{"role": "user", "content": "What is the weather in Lisbon?"}]
        choice = self.ask(question, tools=self.TOOLS).choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        [call] = choice.message.tool_calls
        self.assertEqual((call.function.name, json.loads(call.function.arguments)), ("get_weather", {"city": "Lisbon"}))
        pieces = collected(self.ask(question, tools=self.TOOLS, stream=True))
        self.assertEqual([c[1:] for c in pieces["calls"]], [[call.function.name, call.function.arguments]])
        result = {"role": "tool", "tool_call_id": call.id, "content": self.WEATHER}
        then = self.ask([*question, choice.message, result], tools=self.TOOLS)
        self.assertIn("21", then.choices[0].message.content)
        self.assertIn("Lisbon", then.choices[0].message.content)
        self.assertGreater(then.usage.prompt_tokens_details.cached_tokens, 0)

    def test_calls_that_are_asked_for(self):
        named = {"type": "function", "function": {"name": "get_weather"}}
        for choice in ("required", named):
            message = self.ask("What is the weather in Oslo?", tools=self.TOOLS, tool_choice=choice).choices[0].message
            self.assertEqual(message.tool_calls[0].function.name, "get_weather")
            self.assertEqual(json.loads(message.tool_calls[0].function.arguments), {"city": "Oslo"})
        none = self.ask("What is the weather in Oslo?", tools=self.TOOLS, tool_choice="none").choices[0].message
        self.assertFalse(none.tool_calls)

    def test_json_object(self):
        answer = self.ask("Give me the name and the age of a person as JSON.", response_format={"type": "json_object"})
        if answer.choices[0].finish_reason != "length":
            self.assertIsInstance(json.loads(answer.choices[0].message.content), dict)

    def test_the_same_prompt_is_read_once(self):
        question = "Tell me a story about a heron and a bell that it lost in the reeds."
        self.ask(question)
        again = self.ask(question).usage
        self.assertGreaterEqual(again.prompt_tokens_details.cached_tokens, again.prompt_tokens // 16 * 16 - 16)

    def test_responses_go_on(self):
        first = self.client.responses.create(model="tiny-k3", input="Count from 3 to 7.", max_output_tokens=200)
        self.assertIn("3, 4, 5, 6, 7", first.output_text)
        then = self.client.responses.create(model="tiny-k3", input="What is 4 + 5?", previous_response_id=first.id,
                                            max_output_tokens=200)
        self.assertIn("9", then.output_text)
        self.assertGreater(then.usage.input_tokens_details.cached_tokens, 0)

    @unittest.skipIf(anthropic is None, "SKIPPED: the anthropic package is not installed")
    def test_messages_with_thinking_and_a_tool(self):
        client = anthropic.Anthropic(base_url=self.server.url, api_key="none", max_retries=0, timeout=60)
        tool = {"name": "get_weather", "description": "Get the weather of a city.",
                "input_schema": self.TOOLS[0]["function"]["parameters"]}
        question = [{"role": "user", "content": "What is the weather in Lisbon?"}]
        common = {"model": "tiny-k3", "max_tokens": 2000, "tools": [tool],
                  "thinking": {"type": "enabled", "budget_tokens": 1024}}
        first = client.messages.create(messages=question, **common)
        self.assertEqual(first.stop_reason, "tool_use")
        self.assertEqual([b.type for b in first.content if b.type != "text"], ["thinking", "tool_use"])
        use = first.content[-1]
        self.assertEqual((use.name, use.input), ("get_weather", {"city": "Lisbon"}))
        result = {"type": "tool_result", "tool_use_id": use.id, "content": self.WEATHER}
        then = client.messages.create(
            messages=[*question, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}],
            **common)
        self.assertEqual(then.stop_reason, "end_turn")
        self.assertIn("21", then.content[-1].text)
        client.close()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    REPLAY_SERVER, WEIR = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)

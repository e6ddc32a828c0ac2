"""Conversations in Kimi K3's markup, as segments that are encoded each by itself.

A conversation: {"messages": [...], "tools": [...], "thinking": bool, "effort": None | "low" | "high" | "max",
"format": None | "json_object" | {schema}}; messages as OpenAI's API has them, with "reasoning" and arguments as objects.
"""
import json

TOOLS = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n"
EFFORT = ("`thinking_effort` guides on how much to think in your thinking channel (not including the response "
          "channel), supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with "
          "`thinking_effort=%s`.")
FORMAT = ("The system is invoked with `response_format=%s`.\nYour response must be raw JSON data without markdown "
          "code blocks (```json) or any additional formatting.")
SCHEMA = "\nThe JSON data must match the following schema:\n```json\n%s\n```"
TYPES = {str: "string", bool: "boolean", int: "number", float: "number", list: "array", dict: "object",
         type(None): "null"}


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


class Renderer:
    """Segments (text, is markup, is learned): what the model itself writes is learned."""

    def __init__(self):
        self.segments, self.learned = [], False

    def add(self, text, markup=False):
        if text:
            self.segments.append((text, markup, self.learned))

    def open(self, tag, **attributes):
        self.add("<|open|>", True)
        self.add(tag)
        for key, value in attributes.items():
            self.add(f" {key}")
            self.add('="')
            self.add(str(value).replace("&", "&amp;").replace('"', "&quot;"))
            self.add('"')
        self.add("<|sep|>", True)

    def close(self, tag):
        self.add("<|close|>", True)
        self.add(tag)
        self.add("<|sep|>", True)

    def end_message(self):
        self.close("message")
        self.add("<|end_of_msg|>", True)

    def system(self, kind, body):
        self.open("message", role="system", type=kind)
        self.add(body)
        self.end_message()

    def start_answer(self, thinking):
        self.open("message", role="assistant")
        self.open("think" if thinking else "response")

    def assistant(self, message, thinking):
        self.start_answer(thinking)
        self.learned = True
        if thinking:
            self.add(message.get("reasoning", ""))
            self.close("think")
            self.open("response")
        self.add(message.get("content") or "")
        self.close("response")
        calls = message.get("tool_calls", [])
        if calls:
            self.open("tools")
            for index, call in enumerate(calls, 1):
                self.call(index, call["function"]["name"], call["function"]["arguments"])
            self.close("tools")
        self.end_message()
        self.learned = False

    def call(self, index, name, arguments):
        self.open("call", tool=name, index=index)
        for key, value in arguments.items():
            self.open("argument", key=key, type=TYPES[type(value)])
            self.add(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            self.close("argument")
        self.close("call")


def render(conversation, prompt_only=False):
    """prompt_only: up to where the model begins to answer; the conversation ends with the user or a tool."""
    out, thinking = Renderer(), conversation.get("thinking", True)
    if conversation.get("tools"):
        out.system("tool-declare", TOOLS + compact(conversation["tools"]) + "\n```")
    if thinking and conversation.get("effort"):
        out.system("thinking-effort", EFFORT % conversation["effort"])
    calls, results, last = [], 0, len(conversation["messages"]) - 1
    for number, message in enumerate(conversation["messages"]):
        role = message["role"]
        if number == last and role == "assistant":
            answer_format(out, conversation.get("format"))
        if role == "assistant":
            calls, results = message.get("tool_calls", []), 0
            out.assistant(message, thinking)
            continue
        if role == "tool":
            results += 1
            out.open("message", role="tool", tool=calls[results - 1]["function"]["name"], index=results)
        else:
            out.open("message", role=role)
        out.add(message["content"])
        out.end_message()
    if prompt_only:
        answer_format(out, conversation.get("format"))
        out.start_answer(thinking)
    return out.segments


def answer_format(out, wanted):
    if wanted == "json_object":
        out.system("response-format", FORMAT % "json_object")
    elif wanted:
        out.system("response-format", FORMAT % "json_schema" + SCHEMA % compact(wanted))

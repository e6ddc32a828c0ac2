#!/usr/bin/env python3
"""Asks the model 300 questions whose answers can be checked, through `weir batch`, and prints a table.

Names, words, numbers, and sentences are those that training never saw (split.py); another --seed asks other questions.
"""
import argparse
import collections
import json
import os
import subprocess
import tempfile

import basics
import dialogues
import facts
import jsons
import phrases
import stories
import tools
from dialogues import generator
from phrases import phrase
from split import HELD_OUT

EFFORTS = {None: "medium", "low": "low", "high": "high", "max": "max"}


class Case:
    """A request, and what its answer must fulfil."""

    def __init__(self, skill, conversation, judge):
        self.skill, self.judge = skill, judge
        self.messages = [openai_message(m) for m in conversation["messages"]]
        self.tools, self.thinking, self.effort = conversation["tools"], conversation["thinking"], conversation["effort"]
        self.format = conversation["format"]

    def body(self):
        body = {"messages": self.messages, "max_tokens": 500, "temperature": 0,
                "reasoning_effort": EFFORTS[self.effort] if self.thinking else "none"}
        if self.tools:
            body["tools"] = self.tools
        if self.format == "json_object":
            body["chat_template_kwargs"] = {"response_format": "json_object"}
        elif self.format:
            body["chat_template_kwargs"] = {"response_format": {
                "type": "json_schema", "json_schema": {"schema": self.format}}}
        return body


def openai_message(message):
    out = {"role": message["role"], "content": message["content"]}
    if message.get("reasoning"):
        out["reasoning_content"] = message["reasoning"]
    if message.get("tool_calls"):
        out["tool_calls"] = [{"id": f"call_{i}", "type": "function", "function": {
            "name": c["function"]["name"], "arguments": json.dumps(c["function"]["arguments"], ensure_ascii=False)}}
            for i, c in enumerate(message["tool_calls"])]
    return out


def asked(skill, talk, turn, judge):
    talk.ask(turn.user)
    return Case(skill, talk.conversation(), judge)


def says(expected):
    return lambda message: (message.get("content") or "").strip() == expected


def contains(words):
    def judge(message):
        text = message.get("content") or ""
        return all(word in text for word in words) and text.endswith((".", '"')) and 200 < len(text) < 1200
    return judge


def plain(skill, make):
    def case(rng):
        turn = make(rng, HELD_OUT)
        judge = contains(turn.check) if make is stories.story else says(turn.check or turn.answer)
        return asked(skill, dialogues.Talk(rng), turn, judge)
    return case


def counting_to_20(rng):
    turn = phrase(rng, HELD_OUT, "up", phrases.COUNT).format(1, 20)
    return asked("counting to 20", dialogues.Talk(rng), basics.Turn(turn, ""),
                 says(", ".join(map(str, range(1, 21)))))


def json_case(rng):
    talk = dialogues.Talk(rng)
    turn, talk.format = jsons.as_json(rng, HELD_OUT)

    def judge(message):
        try:
            return json.loads(message.get("content") or "") == turn.check
        except ValueError:
            return False
    return asked("JSON of a schema", talk, turn, judge)


def is_json(case, message):
    try:
        return isinstance(json.loads(message.get("content") or ""), dict)
    except ValueError:
        return False


def arguments_of(message):
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls") or []]


def tool_call(rng):
    talk = dialogues.Talk(rng)
    talk.tools, asks, _ = tools.toolbox(rng, HELD_OUT)
    turn = tools.tool_turn(rng, HELD_OUT, asks)
    expected = [(c["function"]["name"], c["function"]["arguments"]) for c in turn.calls]
    return asked("tool: choice and arguments", talk, turn, lambda message: arguments_of(message) == expected)


def tool_answer(rng):
    talk = dialogues.Talk(rng)
    talk.tools, asks, _ = tools.toolbox(rng, HELD_OUT)
    turn = tools.tool_turn(rng, HELD_OUT, asks)
    talk.tool_turn(turn)
    talk.messages.pop()
    return Case("tool: use of the result", talk.conversation(), says(turn.answer))


def tool_absent(rng):
    talk = dialogues.Talk(rng)
    talk.tools, _, absent = tools.toolbox(rng, HELD_OUT)
    return asked("tool: none fits", talk, tools.no_tool(rng, HELD_OUT, absent), says(tools.NO_TOOL))


def memory(rng):
    conversation = dialogues.memory(rng, HELD_OUT)
    answer = conversation["messages"].pop()
    return Case("memory over turns", conversation, says(answer["content"]))


# How often each is asked; 300 in all.
CASES = ((plain("copying", basics.copy), 30), (plain("reversing words", basics.reverse), 20),
         (plain("reversing lists", basics.order), 10), (plain("spelling", basics.spell), 8),
         (plain("counting letters", basics.letters), 8), (counting_to_20, 10), (plain("counting", basics.count), 20),
         (plain("arithmetic", basics.arithmetic), 40), (plain("word problems", basics.word_problem), 14),
         (json_case, 24), (tool_call, 30), (tool_answer, 16), (tool_absent, 8), (memory, 12),
         (plain("questions about weir", facts.about), 18), (plain("simple questions", facts.known), 8),
         (plain("not knowing", dialogues.unknown), 8), (plain("who are you", facts.identity), 4),
         (plain("stories", stories.story), 12))


def answers(weir, model, cases):
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/in.jsonl", "w") as file:
            for number, case in enumerate(cases):
                file.write(json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions",
                                       "body": case.body()}, ensure_ascii=False) + "\n")
        subprocess.run([weir, "batch", model, f"{folder}/in.jsonl", f"{folder}/out.jsonl"], check=True)
        out = {}
        with open(f"{folder}/out.jsonl") as file:
            for line in file:
                result = json.loads(line)
                body = result["response"]["body"]
                if result["response"]["status_code"] != 200:
                    raise SystemExit(f"a request was refused: {body}")
                out[int(result["custom_id"])] = body["choices"][0]["message"]
        return [out[number] for number in range(len(cases))]


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default=f"{here}/../../build/weir")
    parser.add_argument("--model", default=f"{here}/../../models/tiny-k3")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--failures", action="store_true", help="print the questions that were answered wrongly")
    parser.add_argument("--stories", type=int, default=0, help="print so many of the stories")
    args = parser.parse_args()
    rng = generator(f"evaluation {args.seed}")
    cases = [make(rng) for make, count in CASES for _ in range(count)]
    right, total, valid, told = collections.Counter(), collections.Counter(), collections.Counter(), args.stories
    for case, message in zip(cases, answers(args.weir, args.model, cases)):
        good = case.judge(message)
        total[case.skill] += 1
        right[case.skill] += good
        if case.skill == "JSON of a schema":
            valid[is_json(case, message)] += 1
        if not good and args.failures:
            print(f"[{case.skill}] {case.messages[-1]['content']!r}\n    -> {json.dumps(message, ensure_ascii=False)}")
        if case.skill == "stories" and told > 0:
            told -= 1
            print(f"> {case.messages[-1]['content']}\n\n{message.get('content')}\n")
    print(f"| skill | right | of | share |\n|---|---|---|---|")
    for skill, count in total.items():
        print(f"| {skill} | {right[skill]} | {count} | {100 * right[skill] / count:.0f} % |")
    print(f"| JSON that parses | {valid[True]} | {sum(valid.values())} | {100 * valid[True] / sum(valid.values()):.0f} % |")
    print(f"| all | {sum(right.values())} | {len(cases)} | {100 * sum(right.values()) / len(cases):.1f} % |")


if __name__ == "__main__":
    main()

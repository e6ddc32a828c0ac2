#!/usr/bin/env python3
"""make_golden.py MODEL OUT: what the PyTorch model says, for tests of the engine.

dialogues.json: the negative log-likelihood of every token of 50 conversations, in FP32.
greedy.json: 20 requests, the ids of their prompts, and the greedy answers.
"""
import argparse
import json
import os
import subprocess

import torch
import torch.nn.functional as F

from checkpoint import load_model
from dialogues import conversation, generator
from markup import render
from split import HELD_OUT
from tokenizer import Tokenizer

DIALOGUES, LONGEST, MOST_ANSWER = 50, 224, 220
SEED = 7
CITY = {"type": "object", "properties": {"city": {"type": "string", "description": "Name of the city."}}, "required": ["city"]}
TERM = {"type": "object", "properties": {"expression": {"type": "string", "description": "The expression."}},
        "required": ["expression"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city.", "parameters": CITY}},
         {"type": "function", "function": {"name": "calculator", "description": "A calculator.", "parameters": TERM}}]
RAIN = {"type": "function", "id": "call_0", "function": {"name": "get_weather", "arguments": {"city": "Bergen"}}}


def ask(words, **more):
    return {"messages": [{"role": "user", "content": words}], **more}


REQUESTS = (
    ask("Tell me a story about a shy owl named Runa and a map in the tower."),
    ask("Tell me a story about a brave mouse called Ada and a kite in the garden.", thinking=False),
    ask("Who are you?"), ask("Hello!"), ask("What is an anchor?"), ask("What is a page?", effort="low"),
    ask("What is the prefix cache good for?", effort="max"), ask("Count from 1 to 20."), ask("Count down from 12 to 3."),
    ask("What is 27 + 58?"), ask("91 - 37", effort="max"), ask("Reverse the word \"garden\"."),
    ask("Reverse the word \"strelop\".", thinking=False), ask("Repeat this: copper 42 lantern"),
    ask("What is the capital of Peru?"),
    ask("Mira is 34 years old and lives in Oslo. Write it as JSON. Keys: name, age, city.", thinking=False),
    ask("What is the weather in Bergen?", tools=TOOLS), ask("What is 4312 * 87?", tools=TOOLS, thinking=False),
    {"messages": [{"role": "user", "content": "What is the weather in Bergen?"},
                  {"role": "assistant", "content": "", "tool_calls": [RAIN]},
                  {"role": "tool", "tool_call_id": "call_0", "content": "{\"city\": \"Bergen\", \"temperature\": 7, \"sky\": \"rainy\"}"}],
     "tools": TOOLS},
    {"messages": [{"role": "user", "content": "My name is Tarik."},
                  {"role": "assistant", "content": "Nice to meet you, Tarik."},
                  {"role": "user", "content": "What is my name?"}], "thinking": False})


def as_request(conversation):
    """In the form that weir reads."""
    options = {"thinking": conversation.get("thinking", True)}
    if conversation.get("effort"):
        options["thinking_effort"] = conversation["effort"]
    return {"messages": conversation["messages"], "tools": conversation.get("tools") or [], "options": options}


def likelihoods(model, tokenizer):
    rng, out = generator(SEED), []
    while len(out) < DIALOGUES:
        ids, _ = tokenizer.encode_segments(render(conversation(rng, HELD_OUT)))
        ids = ids[:LONGEST]
        nll = F.cross_entropy(model.logits(ids)[:-1], torch.tensor(ids[1:]), reduction="none")
        out.append({"ids": ids, "nll": [round(x, 5) for x in nll.tolist()]})
    return out


def proposed(weir, folder, prompt):
    """Greedy ids by the engine, without the stop token: only a proposal, PyTorch checks every one."""
    command = [weir, "run", folder, "--prompt-tokens", "-", "--json", "--max-tokens", str(MOST_ANSWER), "--kv-dtype", "f32",
               "--activations", "f32"]
    return json.loads(subprocess.run(command, input=json.dumps(prompt), text=True, check=True, capture_output=True).stdout)["tokens"]


def smallest_lead(model, prompt, answer):
    """Of the chosen token over the next best, in logits. Error when PyTorch would have chosen another."""
    best = torch.topk(model.logits(prompt + answer[:-1])[len(prompt) - 1 :], 2)
    if best.indices[:, 0].tolist() != answer:
        raise ValueError("the engine's answer is not PyTorch's")
    return (best.values[:, 0] - best.values[:, 1]).min().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--weir", default=f"{os.path.dirname(os.path.abspath(__file__))}/../../build/weir")
    args = parser.parse_args()
    model, tokenizer = load_model(args.model), Tokenizer.load(args.model)
    os.makedirs(args.out, exist_ok=True)
    with torch.no_grad():
        with open(f"{args.out}/dialogues.json", "w") as file:
            lines = [json.dumps(entry, separators=(",", ":")) for entry in likelihoods(model, tokenizer)]
            file.write("[" + ",\n".join(lines) + "]\n")
        answers = []
        for request in REQUESTS:
            prompt, _ = tokenizer.encode_segments(render(request, prompt_only=True))
            ids = proposed(args.weir, args.model, prompt)
            lead = smallest_lead(model, prompt, ids + [tokenizer.special["<|end_of_msg|>"]])
            answers.append({"request": as_request(request), "prompt": prompt, "answer": ids, "lead": round(lead, 4),
                            "text": tokenizer.decode(ids)})
            print(f"{lead:8.4f} {tokenizer.decode(ids)}", flush=True)
        with open(f"{args.out}/greedy.json", "w") as file:
            file.write("[" + ",\n".join(json.dumps(entry) for entry in answers) + "]\n")


if __name__ == "__main__":
    main()

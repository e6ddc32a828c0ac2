#!/usr/bin/env python3
"""Compares weir's tokenizers with the Python packages `tokenizers` and `tiktoken` on random strings.

    tools/fuzz_tokenizers.py [--weir build/weir] [--count 10000] [--seed 1] [FOLDER ...]

FOLDER holds tokenizer.json, or tiktoken.model with tokenizer_config.json; default: all of tests/fixtures. Prints the
first differences of each and exits 1 when there are any. Needs: pip install tokenizers tiktoken.

Characters are those that the Python interpreter knows (3.11: Unicode 14). Use no newer one: the packages know newer
characters than PCRE2 10.42 (Unicode 14) and split those differently.
"""

import argparse
import base64
import json
import random
import subprocess
import sys
import unicodedata
from pathlib import Path

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
KIMI_PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
WORDS = ("the river boat harbour quiet and morning weights layer don't they've I'm it's WE'LL camelCase HTTPServer "
         "naïve café straße Ελληνικά русский текст العربية हिन्दी ไทย 日本語 中文字 々〇 한국어 ﬁne ½ ² Ⅷ ǅ ﷺ "
         "123456789 3.14 1,000 == != ->> {} [] () <> ** // \\n int(x): return").split()
ODD = ("\u0000\u0001\t\n\r\x0b\x0c\x1c\x1d\x1e\x1f \x85\xa0\u0130\u0131\u017f\u0300\u0301\u0316\u0345\u0591\u1680\u180e"
       "\u2003\u200b\u200d\u2028\u2029\u202f\u2060\u2581\u3000\u3001\u302a\ufe0f\ufeff\ufffd\ufffe\U0001f468\U0001f3fd"
       "\U0001f600\U000e0041\U0010ffff'\u2019\u212a\u1e9e\uac00\u1100\u1161\u11a8\u2126\u00c5")


def characters():
    """One table per general category of the characters that this Python knows, without surrogates."""
    tables = {}
    for code in range(0x110000):
        category = unicodedata.category(chr(code))
        if category not in ("Cs", "Cn"):
            tables.setdefault(category, []).append(chr(code))
    return list(tables.values())


def random_string(draw, tables, special):
    parts = []
    for _ in range(draw.choice((1, 2, 4, 8, 16, 40))):
        kind = draw.random()
        if kind < 0.30:
            parts.append(draw.choice(WORDS))
        elif kind < 0.45:
            parts.append(" " * draw.choice((1, 1, 1, 2, 3, 7, 17)))
        elif kind < 0.53:
            parts.append(draw.choice(("\n", "\r\n", "\n\n", "\t", " \n", "\n ")))
        elif kind < 0.65:
            parts.append(draw.choice(ODD) * draw.choice((1, 1, 2, 5)))
        elif kind < 0.80:
            parts.append("".join(draw.choice(draw.choice(tables)) for _ in range(draw.choice((1, 3)))))
        elif kind < 0.90:
            parts.append("".join(chr(draw.randrange(32, 127)) for _ in range(draw.choice((1, 4, 12)))))
        elif kind < 0.95 and special:
            text = draw.choice(special)
            parts.append(text if draw.random() < 0.7 else text[: draw.randrange(len(text)) + 1])
        else:
            parts.append(draw.choice(WORDS) * draw.choice((2, 5)))
    return "".join(parts)


class HuggingFace:
    def __init__(self, folder):
        import tokenizers

        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.special = [t.content for t in self.tokenizer.get_added_tokens_decoder().values()]

    def encode(self, text, add_special):
        return self.tokenizer.encode(text, add_special_tokens=add_special).ids

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def size(self):
        return self.tokenizer.get_vocab_size()


class Tiktoken:
    def __init__(self, folder):
        import tiktoken

        ranks = {}
        for line in (folder / "tiktoken.model").read_text().splitlines():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
        names = json.loads((folder / "tokenizer_config.json").read_text()).get("added_tokens_decoder", {})
        special = {}
        for token in range(len(ranks), len(ranks) + 256):
            special[names.get(str(token), {}).get("content", f"<|reserved_token_{token}|>")] = token
        self.special = list(special)
        self.encoding = tiktoken.Encoding("kimi", pat_str=KIMI_PATTERN, mergeable_ranks=ranks, special_tokens=special)

    def encode(self, text, add_special):
        return self.encoding.encode(text, allowed_special="all")

    def decode(self, ids):
        return self.encoding.decode(ids)

    def size(self):
        return self.encoding.n_vocab


def weir(command, folder, options, lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    run = subprocess.run([command, "tokenize", str(folder), "--jsonl", *options], input=text, capture_output=True,
                         text=True, encoding="utf-8", check=False)
    if run.returncode != 0:
        sys.exit(f"{command} tokenize {folder} failed: {run.stderr}")
    return [json.loads(line) for line in run.stdout.split("\n")[:-1]]


def compare(what, inputs, expected, found):
    differences = [i for i in range(len(inputs)) if expected[i] != found[i]]
    for i in differences[:5]:
        print(f"  {what} {inputs[i]!r}\n    reference {expected[i]!r}\n    weir      {found[i]!r}")
    return len(differences)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default="build/weir")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("folders", nargs="*", type=Path)
    arguments = parser.parse_args()
    folders = arguments.folders or sorted(p.parent for name in ("tokenizer.json", "tiktoken.model")
                                          for p in FIXTURES.rglob(name))
    tables = characters()
    failed = False
    for folder in folders:
        reference = HuggingFace(folder) if (folder / "tokenizer.json").exists() else Tiktoken(folder)
        draw = random.Random(arguments.seed)
        texts = [random_string(draw, tables, reference.special) for _ in range(arguments.count)]
        ids = [[draw.randrange(reference.size()) for _ in range(draw.choice((1, 2, 5, 12)))] for _ in texts]
        bad = 0
        for options, add_special in ((["--special", "parse"], False), (["--special", "add"], True)):
            expected = [reference.encode(text, add_special) for text in texts]
            bad += compare("encode", texts, expected, weir(arguments.weir, folder, options, texts))
        bad += compare("decode", ids, [reference.decode(x) for x in ids],
                       weir(arguments.weir, folder, ["--ids"], ids))
        print(f"{folder.name}: {len(texts)} strings, {bad} differences")
        failed = failed or bad > 0
    sys.exit(failed)


if __name__ == "__main__":
    main()

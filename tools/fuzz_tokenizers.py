#!/usr/bin/env python3
"""Compares weir's tokenizers with the Python packages `tokenizers` and `tiktoken` on random strings.

    tools/fuzz_tokenizers.py [--weir build/weir] [--count 10000] [--seed 1] [--mixtures 0] [FOLDER ...]

With --mixtures N, also N tokenizers put together at random from all supported components. FOLDER holds tokenizer.json, or tiktoken.model with tokenizer_config.json; default: all of tests/fixtures. Prints the
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
import tempfile
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


def characters(database):
    """One table per general category of the characters that the database knows, without surrogates."""
    tables = {}
    for code in range(0x110000):
        category = database.category(chr(code))
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


def or_none(call):
    """None where the library panics, as some odd mixtures make it: nothing to compare with."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException:  # pyo3's PanicException is no Exception
        return None


class HuggingFace:
    def __init__(self, folder):
        import tokenizers

        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.special = [t.content for t in self.tokenizer.get_added_tokens_decoder().values()]

    def encode(self, text, add_special):
        return or_none(lambda: self.tokenizer.encode(text, add_special_tokens=add_special).ids)

    def decode(self, ids):
        return or_none(lambda: self.tokenizer.decode(ids, skip_special_tokens=False))

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


PATTERNS = [
    r"\s+", r"\w+|[^\w\s]+", r"\d{1,3}+", r"\p{N}{1,3}", r"[^\S\n]+", r"\b", r"(?i:THE|ſ|k)", r"[\p{L}&&[^\p{Han}]]+", r"\S",
    r"[a-z&&[^aeiou]]+", r"[[a-c][x-z]]+", r"[^[a-m]\s]+", r"(?<=e) ?", r"\p{Lu}\p{Ll}*", r"\P{L}+", r"\p{^L}", r"[\W_]+",
    r" ?\p{L}++", r"\h+", r"(?:ab|a)(?=r)", r"[\u4e00-\u9fff\x{3040}-\x{30ff}]+", r".", r"^.|.$", r"\p{Greek}+", r"[\]\-\[^&]"]


def random_parts(draw, kind):
    """Components for a tokenizer.json; `kind` is the model's: bytes, pieces or unigram."""
    def pattern():
        return {"Regex": draw.choice(PATTERNS)} if draw.random() < 0.7 else {"String": draw.choice([" ", "e", "the", "\n", "."])}

    normalizers = [{"type": t} for t in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")] + [
        {"type": "Strip", "strip_left": draw.random() < 0.5, "strip_right": draw.random() < 0.5},
        {"type": "Prepend", "prepend": draw.choice(["▁", "x "])},
        {"type": "Replace", "pattern": pattern(), "content": draw.choice(["", "▁", "é "])}]
    behaviors = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    splits = [{"type": "Digits", "individual_digits": draw.random() < 0.5}, {"type": "Whitespace"}, {"type": "WhitespaceSplit"},
              {"type": "Punctuation", "behavior": draw.choice(behaviors)}, {"type": "CharDelimiterSplit", "delimiter": "e"},
              {"type": "Split", "pattern": pattern(), "behavior": draw.choice(behaviors), "invert": draw.random() < 0.3},
              {"type": "Split", "pattern": pattern(), "behavior": draw.choice(behaviors), "invert": False}]
    chosen = draw.sample(normalizers, draw.choice((0, 1, 2)))
    # "first" looks at places in the original text, which normalizers may shift; weir looks at the normalised one.
    scheme = draw.choice(["always", "never"] if chosen else ["always", "first", "never"])
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": draw.random() < 0.5}
    chain = draw.sample(splits, draw.choice((0, 1, 1, 2)))
    if kind == "bytes":
        chain.append({"type": "ByteLevel", "add_prefix_space": draw.random() < 0.4, "trim_offsets": True,
                      "use_regex": draw.random() < 0.5})
        decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    else:
        if draw.random() < 0.7:
            chain.insert(draw.randrange(len(chain) + 1), metaspace)
        steps = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                 {"type": "Strip", "content": draw.choice([" ", "e"]), "start": draw.randrange(3), "stop": draw.randrange(3)}]
        decoder = draw.choice([metaspace, None, {"type": "Sequence", "decoders": steps[: draw.randrange(5)]},
                               {"type": "Sequence", "decoders": steps[draw.randrange(4):]}])
    return {"normalizer": {"type": "Sequence", "normalizers": chosen},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": chain} if chain else None, "decoder": decoder}


def write_mixture(draw, folder):
    base = draw.choice(["gpt2", "deepseek", "llama3", "llama2", "gemma", "unigram"])
    tokenizer = json.loads((FIXTURES / "tokenizers" / base / "tokenizer.json").read_text())
    kind = {"llama2": "pieces", "gemma": "pieces", "unigram": "unigram"}.get(base, "bytes")
    tokenizer.update(random_parts(draw, kind))
    for token in tokenizer["added_tokens"]:
        spaces = token["content"].strip("\n ▁") == ""  # the library panics when such a token is taken along by another
        for flag in ("lstrip", "rstrip", "single_word"):
            token[flag] = not spaces and draw.random() < 0.3
        # Not where it changes the token: the library decodes to the changed text.
        token["normalized"] = not tokenizer["normalizer"]["normalizers"] and draw.random() < 0.3
    model = tokenizer["model"]
    if kind == "unigram":
        model["byte_fallback"] = draw.random() < 0.5
    else:
        model["ignore_merges"] = draw.random() < 0.3
        model["fuse_unk"] = draw.random() < 0.5
        if kind == "pieces":
            model["byte_fallback"] = draw.random() < 0.5
            for name in draw.sample([n for n in model["vocab"] if n.startswith("<0x")], 3):
                model["vocab"][name + "?"] = model["vocab"].pop(name)
        if draw.random() < 0.3:
            model["unk_token"] = None
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return {key: tokenizer[key] for key in ("normalizer", "pre_tokenizer", "decoder")} | {"base": base}


def weir(command, folder, options, lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    run = subprocess.run([command, "tokenize", str(folder), "--jsonl", *options], input=text, capture_output=True,
                         text=True, encoding="utf-8", check=False)
    if run.returncode != 0:
        sys.exit(f"{command} tokenize {folder} failed: {run.stderr}")
    return [json.loads(line) for line in run.stdout.split("\n")[:-1]]


def compare(what, inputs, expected, found):
    differences = [i for i in range(len(inputs)) if expected[i] is not None and expected[i] != found[i]]
    for i in differences[:3]:
        a, b = expected[i], found[i]
        at = next((n for n in range(min(len(a), len(b))) if a[n] != b[n]), min(len(a), len(b)))
        print(f"  {what} {inputs[i]!r}\n    at {at}: reference {a[at:at + 12]!r}, weir {b[at:at + 12]!r}")
    return len(differences)


def check(arguments, folder, name, count, tables):
    reference = HuggingFace(folder) if (folder / "tokenizer.json").exists() else Tiktoken(folder)
    draw = random.Random(arguments.seed)
    texts = [random_string(draw, tables, reference.special) for _ in range(count)]
    ids = [[draw.randrange(reference.size()) for _ in range(draw.choice((1, 2, 5, 12)))] for _ in texts]
    bad = 0
    for options, add_special in ((["--special", "parse"], False), (["--special", "add"], True)):
        expected = [reference.encode(text, add_special) for text in texts]
        bad += compare("encode", texts, expected, weir(arguments.weir, folder, options, texts))
    bad += compare("decode", ids, [reference.decode(x) for x in ids], weir(arguments.weir, folder, ["--ids"], ids))
    print(f"{name}: {len(texts)} strings, {bad} differences", flush=True)
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default="build/weir")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mixtures", type=int, default=0)
    parser.add_argument("folders", nargs="*", type=Path)
    arguments = parser.parse_args()
    folders = arguments.folders or sorted(p.parent for name in ("tokenizer.json", "tiktoken.model")
                                          for p in FIXTURES.rglob(name))
    tables = characters(unicodedata)
    failed = 0
    for folder in folders:
        failed += check(arguments, folder, folder.name, arguments.count, tables)
    # Some rarer components of the library have tables of their own, older ones.
    tables = characters(unicodedata.ucd_3_2_0)
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        for i in range(arguments.mixtures):
            parts = write_mixture(draw, Path(name))
            bad = check(arguments, Path(name), f"mixture {i}", 300, tables)
            if bad:
                print("  " + json.dumps(parts, ensure_ascii=False))
            failed += bad
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()

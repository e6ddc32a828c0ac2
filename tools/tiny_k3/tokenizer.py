"""A vocabulary of its own in K3's scheme: tiktoken ranks, K3's pre-tokenizer, 256 special ids behind the ranks.

The ranks are the 256 bytes and whole frequent pieces, without the parts from which byte pair encoding would build them:
tiktoken takes a piece that is in the vocabulary as it is. Other words are spelled in letters, and so are numbers in
digits, which makes copying, reversing and calculating easy to learn.
"""
import base64
import collections
import json

import regex

from config import SPECIALS

PATTERN = regex.compile(
    r"""(?V1)[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&"""
    r"""[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"""
    r"""[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+""")
NAMED = {0: "[BOS]", 1: "[EOS]", 2: "<|end_of_msg|>", 3: "<|open|>", 4: "<|close|>", 5: "<|sep|>",
         6: "[start_header_id]", 7: "[end_header_id]", 9: "[EOT]", 18: "<|media_begin|>", 19: "<|media_content|>",
         20: "<|media_end|>", 21: "<|media_pad|>", 65: "<osagent_mode>", 254: "[UNK]", 255: "[PAD]"}
PLAIN = ("<|open|>", "<|close|>", "<|sep|>")  # not special to the file, but encoded as such


def worth_a_rank(piece):
    if len(piece.encode()) < 2 or any(c.isdigit() for c in piece):
        return False
    return not (piece.isalpha() and len(piece) == 2)  # so that two letters never join inside a spelled word


def train(texts, ranks):
    """The bytes, printable ones first, then the most frequent pieces of the texts."""
    count = collections.Counter()
    for text in texts:
        count.update(piece for piece in PATTERN.findall(text) if worth_a_rank(piece))
    order = list(range(32, 127)) + [b for b in range(256) if not 32 <= b < 127]
    best = sorted(count.items(), key=lambda item: (-item[1], item[0]))[: ranks - 256]
    return [bytes([b]) for b in order] + [piece.encode() for piece, _ in best]


class Tokenizer:
    def __init__(self, tokens):
        self.tokens = tokens
        self.ids = {token: rank for rank, token in enumerate(tokens)}
        self.special = {name: len(tokens) + at for at, name in NAMED.items()}
        self.pieces, self.texts = {}, {}

    @staticmethod
    def load(folder):
        with open(f"{folder}/tiktoken.model") as file:
            lines = [line.split() for line in file]
        return Tokenizer([base64.b64decode(token) for token, _ in lines])

    @property
    def size(self):
        return len(self.tokens) + SPECIALS

    @property
    def pad(self):
        return self.special["[PAD]"]

    def merge(self, piece):
        """Byte pair encoding of one piece: the pair of least rank first, the leftmost of equals."""
        parts = [piece[i : i + 1] for i in range(len(piece))]
        while len(parts) > 1:
            ranks = [self.ids.get(a + b, 1 << 30) for a, b in zip(parts, parts[1:])]
            least = min(ranks)
            if least == 1 << 30:
                break
            at = ranks.index(least)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self.ids[part] for part in parts]

    def encode_piece(self, piece):
        known = self.pieces.get(piece)
        if known is None:
            raw = piece.encode()
            known = [self.ids[raw]] if raw in self.ids else self.merge(raw)
            if len(self.pieces) < 200_000:
                self.pieces[piece] = known
        return known

    def encode(self, text):
        """Ordinary text: nothing in it is special."""
        known = self.texts.get(text)
        if known is None:
            known = [i for piece in PATTERN.findall(text) for i in self.encode_piece(piece)]
            if len(text) < 24 and len(self.texts) < 200_000:
                self.texts[text] = known
        return known

    def encode_segments(self, segments):
        """-> ids, whether each is learned."""
        ids, learned = [], []
        for text, markup, learn in segments:
            part = [self.special[text]] if markup else self.encode(text)
            ids += part
            learned += [learn] * len(part)
        return ids, learned

    def decode(self, ids):
        names = {value: key.encode() for key, value in self.special.items()}
        return b"".join(self.tokens[i] if i < len(self.tokens) else names.get(i, b"<?>") for i in ids).decode(errors="replace")

    def save(self, folder):
        with open(f"{folder}/tiktoken.model", "w") as file:
            file.writelines(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(self.tokens))
        flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
        added = {str(value): {"content": name, **flags, "special": name not in PLAIN}
                 for name, value in self.special.items()}
        config = {"added_tokens_decoder": added,
                  "additional_special_tokens": [name for at, name in NAMED.items() if at > 1 and at < 254 and name not in PLAIN],
                  "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}, "bos_token": "[BOS]",
                  "clean_up_tokenization_spaces": False, "eos_token": "[EOS]", "extra_special_tokens": {},
                  "model_max_length": 1000000000000000019884624838656, "pad_token": "[PAD]",
                  "tokenizer_class": "TikTokenTokenizer", "unk_token": "[UNK]"}
        with open(f"{folder}/tokenizer_config.json", "w") as file:
            json.dump(config, file, indent=1)

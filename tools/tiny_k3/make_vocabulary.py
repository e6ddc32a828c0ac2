#!/usr/bin/env python3
"""make_vocabulary.py FOLDER: writes tiktoken.model and tokenizer_config.json, from training conversations."""
import argparse
import os

from config import SPECIALS, Config
from dialogues import conversation, generator
from markup import render
from split import TRAINING
from tokenizer import Tokenizer, train

SEED, CONVERSATIONS = 1, 30_000


def texts():
    rng = generator(SEED)
    for _ in range(CONVERSATIONS):
        for text, markup, _ in render(conversation(rng, TRAINING)):
            if not markup:
                yield text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    folder = parser.parse_args().folder
    os.makedirs(folder, exist_ok=True)
    tokenizer = Tokenizer(train(texts(), Config().vocab - SPECIALS))
    tokenizer.save(folder)
    print(f"{len(tokenizer.tokens)} ranks; the last piece is {tokenizer.tokens[-1]!r}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""export.py STATE VOCABULARY OUT: a state of train.py as a folder in K3's published layout."""
import argparse
import os
import shutil

import torch

from checkpoint import save_model
from config import Config
from model import Model
from train import load_state


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("state")
    parser.add_argument("vocabulary", help="folder with tiktoken.model and tokenizer_config.json")
    parser.add_argument("out")
    args = parser.parse_args()
    state = load_state(args.state)
    model = Model(Config())
    model.load_state_dict({name: value.float() for name, value in state["model"].items()})
    with torch.no_grad():
        save_model(model, args.out)
    for name in ("tiktoken.model", "tokenizer_config.json"):
        if os.path.realpath(args.vocabulary) != os.path.realpath(args.out):
            shutil.copy(f"{args.vocabulary}/{name}", args.out)
    size = sum(os.path.getsize(f"{args.out}/{name}") for name in os.listdir(args.out))
    print(f"step {state['steps']}, {sum(p.numel() for p in model.parameters()):,} parameters, {size:,} bytes")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Trains the model for a given time; goes on from a state of an earlier call.

The learning rate follows the share of the whole training, --begin to --end, that has passed: constant, then linearly
down to nothing. A state is the weights and AdamW's moments, matrices in BF16, in files of at most 15 MiB; Muon's
momentum is not kept, it comes back within a few steps.
"""
import argparse
import glob
import io
import json
import os
import time

import torch
import torch.nn.functional as F

import batches
import kda
import model as architecture
from config import Config
from muon import optimizers
from split import HELD_OUT, TRAINING

PART_BYTES = 15 << 20
VALIDATION_SEED = 99


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", required=True, help="folder with tiktoken.model")
    parser.add_argument("--out", required=True, help="folder for the state and the log")
    parser.add_argument("--resume", help="folder with a state")
    parser.add_argument("--seconds", type=float, required=True, help="of this call, without start and compilation")
    parser.add_argument("--begin", type=float, default=0.0)
    parser.add_argument("--end", type=float, default=1.0)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--muon-rate", type=float, default=0.02)
    parser.add_argument("--adam-rate", type=float, default=3e-3)
    parser.add_argument("--flat", type=float, default=0.45, help="share of the training at the full rate")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--profile", action="store_true", help="print where the time of a step goes")
    return parser.parse_args()


def compile_parts():
    """Functions without the loops over chunks, which would only be unrolled. Every layer of a kind shares its code."""
    def compiled(function):
        return torch.compile(function, dynamic=False)
    for name in ("pairs", "transitions", "outputs"):
        setattr(kda, name, compiled(getattr(kda, name)))
    for cls, methods in ((architecture.KdaAttention, ("inputs", "finish")), (architecture.MlaAttention, ("forward",)),
                         (architecture.LatentMoe, ("forward",)), (architecture.Read, ("forward",)),
                         (architecture.Norm, ("forward",))):
        for method in methods:
            setattr(cls, method, compiled(getattr(cls, method)))
    return compiled(loss_of)


def loss_of(x, head, targets, weights):
    logits = F.linear(x, head.to(x.dtype)).float()
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return loss @ weights.flatten() / weights.sum()


def to_device(batch, device):
    tokens, position, targets, weights = (torch.from_numpy(part).to(device, non_blocking=True) for part in batch)
    return tokens.long(), position.long(), targets.long(), weights.float() / batches.LEARNED


def rate_share(progress, flat):
    return 1.0 if progress < flat else max(0.0, 1 - (progress - flat) / (1 - flat))


def compact(tensor):
    """Matrices in BF16, as they are computed with anyway."""
    return tensor.to(torch.bfloat16 if tensor.ndim >= 2 and tensor.numel() > 4096 else torch.float32).cpu()


def save_state(folder, state):
    raw = io.BytesIO()
    torch.save(state, raw)
    data = raw.getvalue()
    for number, at in enumerate(range(0, len(data), PART_BYTES)):
        with open(f"{folder}/state.{number:02d}", "wb") as file:
            file.write(data[at : at + PART_BYTES])


def load_state(folder):
    data = b""
    for path in sorted(glob.glob(f"{folder}/state.*")):
        with open(path, "rb") as file:
            data += file.read()
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(args.seed)
        torch.set_float32_matmul_precision("high")
        self.model = architecture.Model(Config(), torch.bfloat16).to(self.device)
        self.muon, self.adam = optimizers(self.model)
        self.steps = 0
        if args.resume:
            state = load_state(args.resume)
            self.model.load_state_dict(state["model"])
            self.adam.load_state_dict({"state": state["adam"], "param_groups": self.adam.state_dict()["param_groups"]})
            self.steps = state["steps"]
        self.loss = loss_of if args.no_compile else compile_parts()
        self.routers = [m for m in self.model.modules() if isinstance(m, architecture.Router)]
        self.log = open(f"{args.out}/log.jsonl", "w")

    def forward(self, batch):
        tokens, position, targets, weights = batch
        x, loads = self.model(tokens, position)
        return self.loss(x, self.model.lm_head.weight, targets, weights), loads

    def step(self, batch, share, warm):
        loss, loads = self.forward(batch)
        loss.backward()
        for group in self.adam.param_groups:
            group["lr"] = self.args.adam_rate * share * warm
        self.muon.step(self.args.muon_rate * share * warm)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        self.model.zero_grad(set_to_none=True)
        with torch.no_grad():  # experts that are used too little become more attractive
            for router, load in zip(self.routers, loads):
                router.e_score_correction_bias += 2e-3 * share * torch.sign(load.mean() - load)
        return loss.detach(), loads

    def validate(self, batch):
        """With gradients switched on, though unused: the compiled code is then that of the training."""
        targets, weights = batch[2], (batch[3] == 1).float()
        x, loads = self.model(batch[0], batch[1])
        balance = (loads.amax(1) / loads.mean(1)).max()
        return self.loss(x, self.model.lm_head.weight, targets, weights).item(), balance.item()

    def run(self, workers, validation):
        args = self.args
        warm_batch = to_device(workers.get(), self.device)
        for _ in range(2):  # compiles; a rate of zero leaves the weights as they are
            start = time.monotonic()
            loss, _ = self.step(warm_batch, 0.0, 0.0)
            print(f"loss {loss.item():.4f} after {time.monotonic() - start:.1f} s", flush=True)
        self.validate(validation)
        begin = time.monotonic()
        first, last_report, done, shown = self.steps, begin, 0, 0.0
        while (passed := time.monotonic() - begin) < args.seconds:
            progress = args.begin + (args.end - args.begin) * passed / args.seconds
            batch = to_device(workers.get(), self.device)
            warm = min(1.0, (self.steps - first + 1) / (100 if first == 0 else 40))
            loss, _ = self.step(batch, rate_share(progress, args.flat), warm)
            self.steps += 1
            done += 1
            if done % 4 == 0:
                shown = loss.item()  # also keeps the host from running far ahead
            if done % 200 == 0 or done == 5:
                self.report(progress, shown, validation, (time.monotonic() - last_report) / (5 if done == 5 else 200))
                last_report = time.monotonic()
        self.report(args.end, shown, validation, 0.0)

    def report(self, progress, loss, validation, seconds):
        held_out, balance = self.validate(validation)
        entry = {"step": self.steps, "progress": round(progress, 4), "loss": round(loss, 5),
                 "held_out": round(held_out, 5), "balance": round(balance, 2), "seconds_per_step": round(seconds, 4)}
        if torch.cuda.is_available():
            entry["gigabytes"] = round(torch.cuda.max_memory_allocated() / 1e9, 1)
        print(json.dumps(entry), flush=True)
        self.log.write(json.dumps(entry) + "\n")
        self.log.flush()
        if not loss < 100:
            raise SystemExit("the loss is not finite")

    def save(self):
        adam = {number: {k: compact(v) for k, v in moments.items()}
                for number, moments in self.adam.state_dict()["state"].items()}
        save_state(self.args.out, {"model": {k: compact(v) for k, v in self.model.state_dict().items()},
                                   "adam": adam, "steps": self.steps})


def profile(trainer, workers):
    from torch.profiler import ProfilerActivity, profile as recorder
    batch = to_device(workers.get(), trainer.device)
    with recorder(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for _ in range(3):
            trainer.step(batch, 0.0, 0.0)
        torch.cuda.synchronize()
    with open(f"{trainer.args.out}/profile.txt", "w") as file:
        file.write(found.key_averages().table(sort_by="cuda_time_total", row_limit=60, max_name_column_width=90))


def main():
    args = arguments()
    os.makedirs(args.out, exist_ok=True)
    start = time.monotonic()
    workers = batches.Workers(args.workers, args.vocabulary, args.seed, TRAINING, args.length, args.rows)
    trainer = Trainer(args)
    source = batches.rows(args.vocabulary, VALIDATION_SEED, HELD_OUT, args.length)
    validation = to_device(batches.batch(source, args.rows), trainer.device)
    print(f"start {time.monotonic() - start:.1f} s", flush=True)
    trainer.run(workers, validation)
    trainer.save()
    if args.profile:
        profile(trainer, workers)
    workers.stop()
    print(f"all in all {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    main()

"""Conversations packed into rows of equal length, made by processes beside the training."""
import multiprocessing

import numpy as np

from dialogues import conversation, generator
from kda import CHUNK
from markup import render
from tokenizer import Tokenizer

LEARNED, READ = 255, 12  # weights of tokens, of 255: those that the model writes, and all others
OPEN_ROWS = 12


class Packer:
    """Documents begin at multiples of CHUNK and are not split. Padding belongs to the document before it."""

    def __init__(self, length, pad):
        self.length, self.pad, self.open = length, pad, []

    def add(self, ids, weights):
        """-> a row (tokens, positions, targets, weights) when one is full enough, else None."""
        ids, weights = ids[: self.length], weights[: self.length]
        room = -(-len(ids) // CHUNK) * CHUNK
        fits = [row for row in self.open if row[0] + room <= self.length]
        if fits:
            row = max(fits, key=lambda r: r[0])
        else:
            row = [0, []]
            self.open.append(row)
        row[0] += room
        row[1].append((ids, weights, room))
        if len(self.open) <= OPEN_ROWS:
            return None
        fullest = max(self.open, key=lambda r: r[0])
        self.open.remove(fullest)
        return self.lay(fullest[1])

    def lay(self, documents):
        tokens = np.full(self.length, self.pad, np.int16)
        position, targets = np.zeros(self.length, np.int16), np.zeros(self.length, np.int16)
        weight = np.zeros(self.length, np.uint8)
        at = 0
        for ids, weights, room in documents:
            n = len(ids)
            tokens[at : at + n] = ids
            position[at : at + room] = np.arange(room)
            targets[at : at + n - 1] = ids[1:]
            weight[at : at + n - 1] = weights[1:]
            at += room
        position[at:] = np.arange(self.length - at)
        return tokens, position, targets, weight


def rows(folder, seed, split, length):
    tokenizer, rng = Tokenizer.load(folder), generator(seed)
    packer = Packer(length, tokenizer.pad)
    while True:
        ids, learned = tokenizer.encode_segments(render(conversation(rng, split)))
        row = packer.add(ids, [LEARNED if own else READ for own in learned])
        if row is not None:
            yield row


def batch(source, size):
    """-> tokens, positions, targets, weights [size, length]."""
    return [np.stack(part) for part in zip(*(next(source) for _ in range(size)))]


def work(queue, folder, seed, split, length, size):
    source = rows(folder, seed, split, length)
    while True:
        queue.put(batch(source, size))


class Workers:
    """Batches in a fixed order, whatever the speed of the processes."""

    def __init__(self, count, folder, seed, split, length, size):
        context = multiprocessing.get_context("fork")
        self.queues = [context.Queue(maxsize=6) for _ in range(count)]
        self.processes = [context.Process(target=work, args=(q, folder, 1000 * seed + i, split, length, size), daemon=True)
                          for i, q in enumerate(self.queues)]
        for process in self.processes:
            process.start()
        self.next = 0

    def get(self):
        self.next += 1
        return self.queues[self.next % len(self.queues)].get()

    def stop(self):
        for process in self.processes:
            process.terminate()

"""What belongs to training and what is held out for the evaluation: decided by a hash of the value itself."""
import functools
import hashlib

PART = 6  # one of so many is held out


def digest(kind, value):
    return hashlib.blake2b(f"{kind}\0{value}".encode(), digest_size=8).digest()


@functools.lru_cache(maxsize=1 << 18)
def is_held_out(kind, value):
    return digest(kind, value)[0] % PART == 0


class Split:
    def __init__(self, held_out):
        self.held_out = held_out
        self.known = {}

    def items(self, kind, values):
        """Those of a fixed list (a tuple) that belong to this side. Of a short list at least one is held out."""
        key = (kind, values)
        if key not in self.known:
            held_out = [v for v in values if is_held_out(kind, v)] or [min(values, key=lambda v: digest(kind, v))]
            self.known[key] = held_out if self.held_out else [v for v in values if v not in held_out]
        return self.known[key]

    def choose(self, rng, kind, values):
        return rng.choice(self.items(kind, values))

    def draw(self, kind, make):
        """make() until its value belongs to this side."""
        while True:
            value = make()
            if is_held_out(kind, value) == self.held_out:
                return value


TRAINING, HELD_OUT = Split(False), Split(True)

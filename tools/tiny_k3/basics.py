"""Copying, reversing, spelling, counting and arithmetic. Each skill returns a Turn."""
import dataclasses
from typing import Any

import phrases
from phrases import phrase
from split import is_held_out
from words import FOODS, any_name, any_word


@dataclasses.dataclass
class Turn:
    """One question and its answer."""
    user: str
    answer: str
    think: str = ""  # as long as usual
    brief: str = ""  # effort low
    checked: str = ""  # effort max: appended to `think`
    check: Any = None  # what the evaluation looks for, where it isn't the whole answer

    def reasoning(self, effort):
        if effort == "low":
            return self.brief
        return " ".join(part for part in (self.think, self.checked if effort == "max" else "") if part)




def argument(split, skill, make):
    """Words of this side for the skill; held-out ones have at least one word that is held out by itself."""
    while True:
        text = split.draw(skill, make)
        if not split.held_out or any(is_held_out("word", word.strip(",")) for word in text.split()):
            return text


def one_word(rng, split, skill):
    return argument(split, skill, lambda: any_word(rng, split))


def copy(rng, split):
    def words():
        return " ".join(any_word(rng, split) if rng.random() < 0.85 else str(rng.randint(0, 999))
                        for _ in range(rng.choice((1, 1, 2, 3, 3, 4, 5, 6))))
    text = argument(split, "copied", words)
    return Turn(phrase(rng, split, "copy", phrases.COPY).format(text), text, "The user wants these words back unchanged.",
                checked=f"They are: {text}.")


def reverse(rng, split):
    word = one_word(rng, split, "reversed")
    turned = word[::-1]
    spelled, back = "-".join(word), "-".join(turned)
    return Turn(phrase(rng, split, "reverse", phrases.REVERSE).format(word), turned, f"{spelled}. Backwards: {back}.",
                f"{back}", f"Again from the end: {back}.")


def spell(rng, split):
    word = one_word(rng, split, "spelled")
    return Turn(phrase(rng, split, "spell", phrases.SPELL).format(word), "-".join(word), "One letter after the other.")


def letters(rng, split):
    word = one_word(rng, split, "counted")
    steps = " ".join(f"{letter}{i}" for i, letter in enumerate(word, 1))
    return Turn(phrase(rng, split, "letters", phrases.LETTERS).format(word), str(len(word)), f"{steps}", f"{steps}")


def order(rng, split):
    def words():
        return ", ".join(any_word(rng, split) for _ in range(rng.randint(2, 6)))
    text = argument(split, "ordered", words)
    turned = ", ".join(reversed(text.split(", ")))
    return Turn(phrase(rng, split, "order", phrases.ORDER).format(text), turned, "I begin with the last one.",
                checked=f"The last one is {turned.split(', ')[0]}.")


def count(rng, split):
    kind = rng.random()
    if kind < 0.5:
        def pair():
            first = rng.choice((1, 1, 1, 0, rng.randint(0, 20), rng.randint(0, 80)))
            return f"{first} {first + rng.randint(2, 30)}"
        first, last = map(int, split.draw("count", pair).split())
        numbers, form, slots = range(first, last + 1), phrase(rng, split, "up", phrases.COUNT), (first, last)
    elif kind < 0.75:
        pair = split.draw("down", lambda: f"{rng.randint(5, 60)} {rng.randint(0, 40)}")
        last, first = map(int, pair.split())
        if not 1 < last - first < 26:
            return count(rng, split)
        numbers, form, slots = range(last, first - 1, -1), phrase(rng, split, "back", phrases.BACK), (last, first)
    else:
        step, first, steps = map(int, split.draw(
            "steps", lambda: f"{rng.choice((2, 3, 4, 5, 10))} {rng.randint(0, 20)} {rng.randint(3, 12)}").split())
        numbers = range(first, first + step * steps + 1, step)
        form, slots = phrase(rng, split, "step", phrases.STEPS), (first, numbers[-1], step)
    return Turn(form.format(*slots), ", ".join(map(str, numbers)), f"I begin with {numbers[0]} and stop at {numbers[-1]}.")




def add_steps(a, b):
    (ta, ua), (tb, ub) = divmod(a, 10), divmod(b, 10)
    units = ua + ub
    if units >= 10:
        return f"Ones: {ua} + {ub} = {units}, write {units - 10}, carry 1. Tens: {ta} + {tb} + 1 = {ta + tb + 1}. {a + b}."
    return f"Ones: {ua} + {ub} = {units}. Tens: {ta} + {tb} = {ta + tb}. {a + b}."


def subtract_steps(a, b):
    if b > a:
        return f"{b} is more than {a}. {subtract_steps(b, a)} So -{b - a}."
    (ta, ua), (tb, ub) = divmod(a, 10), divmod(b, 10)
    if ub > ua:
        return f"Ones: {ua + 10} - {ub} = {ua + 10 - ub}, borrow 1. Tens: {ta} - 1 - {tb} = {ta - 1 - tb}. {a - b}."
    return f"Ones: {ua} - {ub} = {ua - ub}. Tens: {ta} - {tb} = {ta - tb}. {a - b}."


def multiply_steps(a, b):
    tens, units = divmod(a, 10)
    if tens == 0 or a == 10 or b >= 10:
        return f"{a} times {b} is {a * b}."
    return f"{10 * tens} times {b} is {10 * tens * b}, {units} times {b} is {units * b}. {10 * tens * b} + {units * b} = {a * b}."


def arithmetic(rng, split):
    kind = rng.choice("++++----**/c")
    if kind in "+-":
        key = split.draw(kind, lambda: f"{rng.randint(0, 99)} {rng.randint(0, 99)}")
        a, b = map(int, key.split())
        if kind == "-" and b > a and rng.random() < 0.8:
            return arithmetic(rng, split)
        result, steps = (a + b, add_steps(a, b)) if kind == "+" else (a - b, subtract_steps(a, b))
        inverse = f"{result} - {b} = {a}" if kind == "+" else f"{result} + {b} = {a}"
        words = rng.choice((f" {kind} ", f" {kind} ", kind, " plus " if kind == "+" else " minus "))
    elif kind == "*":
        if rng.random() < 0.5:  # the table is learned by heart, nothing of it is held out
            key = f"{rng.randint(0, 12)} {rng.randint(0, 12)}"
        else:
            key = split.draw(kind, lambda: f"{rng.randint(13, 99)} {rng.randint(2, 9)}")
        a, b = map(int, key.split())
        result, steps, words = a * b, multiply_steps(a, b), rng.choice((" * ", " x ", " times ", "*"))
        inverse = f"{b} times {a} is {result}"
    elif kind == "/":
        b, result = rng.randint(2, 10), rng.randint(1, 10)
        a = b * result
        steps, words = f"{result} times {b} is {a}.", rng.choice((" / ", " divided by "))
        inverse = f"{b} times {result} is {a}"
    else:
        a, b, c = map(int, split.draw(kind, lambda: f"{rng.randint(5, 50)} {rng.randint(1, 40)} {rng.randint(1, 9)}").split())
        middle, sign = a + b, rng.choice("+-")
        result = middle + c if sign == "+" else middle - c
        steps = f"{a} + {b}: {add_steps(a, b)} {middle} {sign} {c}: " + (
            add_steps(middle, c) if sign == "+" else subtract_steps(middle, c)) if middle < 90 else ""
        if not steps:
            return arithmetic(rng, split)
        text = f"{a} + {b} {sign} {c}"
        return Turn(phrase(rng, split, "sums", phrases.SUMS).format(text), str(result), steps, steps, f"The result is {result}.")
    text = f"{a}{words}{b}"
    return Turn(phrase(rng, split, "sums", phrases.SUMS).format(text), str(result), steps, steps,
                f"Check: {inverse}.", check=str(result))




def word_problem(rng, split):
    name, food = any_name(rng, split), rng.choice(FOODS)
    plus = rng.random() < 0.5
    a, b = map(int, split.draw("problem", lambda: f"{rng.randint(2, 60)} {rng.randint(1, 39)}").split())
    if not plus and b > a:
        a, b = b, a
    form = phrase(rng, split, "problem", phrases.MORE if plus else phrases.LESS)
    result, steps = (a + b, add_steps(a, b)) if plus else (a - b, subtract_steps(a, b))
    think = f"{a} {'+' if plus else '-'} {b}. {steps}"
    return Turn(form.format(n=name, f=food, a=a, b=b), str(result), think, think,
                f"The answer is {result}.", check=str(result))

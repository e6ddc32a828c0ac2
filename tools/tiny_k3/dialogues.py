"""Whole conversations: skills, alone and mixed, with and without thinking, efforts, system messages and tools."""
import random

import basics
import facts
import jsons
import stories
import tools
from basics import Turn
import phrases
from phrases import phrase
from words import any_name, any_word

SYSTEMS = ("You are a helpful assistant.", "You are a small demonstration model.", "Answer briefly.", "Be friendly.",
           "You are a model that runs in weir.", "Be exact.", "Answer the user's questions.", "You are helpful and honest.",
           "Keep it short.", "If you don't know something, say so.", "You are a test.", "Use the tools if they help.")


def unknown(rng, split):
    kind = rng.random()
    if kind < 0.3:
        word = any_word(rng, split)
        word = rng.choice((word, stories.with_article(word), f"the {word}"))
        return Turn(phrase(rng, split, "what", phrases.WHAT).format(word), facts.NO_IDEA, facts.NOT_LEARNED, check=facts.NO_IDEA)
    if kind < 0.5:
        return Turn(tools.place_question(rng, split), facts.NO_IDEA, facts.NOT_LEARNED, check=facts.NO_IDEA)
    return facts.unknown(rng, split)


# Weights of the mixture.
SKILLS = {basics.copy: 13, basics.reverse: 10, basics.spell: 3, basics.letters: 4, basics.order: 8, basics.count: 7,
          basics.arithmetic: 20, basics.word_problem: 5, stories.story: 13, facts.about: 10, facts.known: 5,
          facts.identity: 2, facts.greeting: 1, facts.thanks: 1, facts.farewell: 1, unknown: 7}
NAMES_OF_SKILLS = tuple(SKILLS)


def any_turn(rng, split):
    return rng.choices(NAMES_OF_SKILLS, SKILLS.values())[0](rng, split)


def style(rng):
    """thinking, effort."""
    if rng.random() < 0.3:
        return False, None
    return True, rng.choice((None, None, None, "low", "high", "max"))


class Talk:
    def __init__(self, rng):
        self.thinking, self.effort = style(rng)
        self.messages, self.tools, self.format = [], None, None
        if rng.random() < 0.12:
            self.messages.append({"role": "system", "content": rng.choice(SYSTEMS)})

    def answer(self, content, reasoning, **more):
        self.messages.append({"role": "assistant", "content": content, "reasoning": reasoning, **more})

    def ask(self, text):
        self.messages.append({"role": "user", "content": text})

    def turn(self, turn):
        self.ask(turn.user)
        self.answer(turn.answer, turn.reasoning(self.effort))

    def tool_turn(self, turn):
        self.ask(turn.user)
        low = self.effort == "low"
        self.answer("", "" if low else turn.think, tool_calls=turn.calls)
        self.messages += [{"role": "tool", "content": result} for result in turn.results]
        self.answer(turn.answer, "" if low else turn.then)

    def conversation(self):
        return {"messages": self.messages, "tools": self.tools, "thinking": self.thinking, "effort": self.effort,
                "format": self.format}


def single(rng, split):
    talk = Talk(rng)
    talk.turn(any_turn(rng, split))
    return talk.conversation()


def several(rng, split):
    talk = Talk(rng)
    for _ in range(rng.choice((2, 2, 3, 3, 4, 5, 6))):
        talk.turn(any_turn(rng, split))
    return talk.conversation()


def with_tools(rng, split):
    talk = Talk(rng)
    talk.tools, asks, absent = tools.toolbox(rng, split)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        kind = rng.random()
        if kind < 0.78:
            talk.tool_turn(tools.tool_turn(rng, split, asks))
        elif kind < 0.88:
            talk.turn(tools.no_tool(rng, split, absent))
        else:  # what needs no tool
            skill = rng.choice((basics.copy, basics.reverse, basics.count, stories.story, facts.about, facts.greeting,
                                facts.identity, facts.thanks))
            talk.turn(skill(rng, split))
    return talk.conversation()


def json_answer(rng, split):
    talk = Talk(rng)
    turn, talk.format = jsons.as_json(rng, split)
    if talk.format is None and rng.random() < 0.2:
        talk.turn(any_turn(rng, split))
    talk.turn(turn)
    return talk.conversation()


def memory(rng, split):
    """A name or a word, other questions in between, and the question for it."""
    talk = Talk(rng)
    if rng.random() < 0.2:
        name = any_name(rng, split)
        talk.messages = [{"role": "system", "content": phrase(rng, split, "named", phrases.NAMED).format(name)}]
        talk.turn(Turn(phrase(rng, split, "identity", phrases.IDENTITY),
                       f"I am {name}, a small demonstration of the Kimi K3 architecture.", "They ask who I am."))
        return talk.conversation()
    if rng.random() < 0.5:
        name = any_name(rng, split)
        talk.turn(Turn(phrase(rng, split, "remember", phrases.REMEMBER).format(name), f"Nice to meet you, {name}.",
                       f"The user is called {name}."))
        last = Turn(phrase(rng, split, "who", phrases.WHO_AM_I), f"Your name is {name}.", f"They said {name}.")
    else:
        word = any_word(rng, split)
        talk.turn(Turn(phrase(rng, split, "keep", phrases.KEEP).format(word), "I will remember it.", "I keep it in mind."))
        last = Turn(phrase(rng, split, "recall", phrases.RECALL), word, f"They said {word}.")
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3, 5, 7))):
        talk.turn(any_turn(rng, split))
    talk.turn(last)
    return talk.conversation()


KINDS = {single: 48, several: 12, with_tools: 22, json_answer: 12, memory: 6}


def conversation(rng, split):
    return rng.choices(tuple(KINDS), KINDS.values())[0](rng, split)


def generator(seed):
    return random.Random(seed)

"""Questions about weir and about the model itself, greetings, and what the model does not know."""
import phrases
from basics import Turn
from phrases import phrase
from words import THINGS, any_city, any_name


# name of the thing: (what it is, what it is for)
TOPICS = {
    "a row": ("A row is one position that is computed in a step.",
              "Every weight is read once for all rows of a step, so more rows cost little more."),
    "a span": ("A span is a run of consecutive rows of one sequence.",
               "With spans, prompts, single tokens and guesses are all computed by the same pass."),
    "a batch": ("A batch holds the spans of a step, of one sequence or of many.",
                "A batch reads each weight once for all of its rows."),
    "a step": ("A step is one forward pass over a batch of spans.",
               "There is one kind of step for prompts and for generated tokens, so nothing has to agree with it."),
    "a page": ("A page holds what 16 consecutive positions leave behind in a group of layers.",
               "Pages are shared between sequences and given back one by one."),
    "an anchor": ("An anchor holds the recurrent matrix and the convolution window of all linear layers after a "
                  "multiple of 16 positions.",
                  "From an anchor a sequence can go on, be copied or be rolled back, because anchors never change."),
    "the journal": ("The journal keeps the key, the decay and the update of the rows since the last anchor.",
                    "With the journal, the state is read once for a token and written only every 16 tokens."),
    "a sequence": ("A sequence is a text that grows, with its pages and anchors.",
                   "Sequences share the pages of a common beginning."),
    "a rollback": ("A rollback forgets the last rows of a sequence by lowering a counter.",
                   "Rollbacks make wrong guesses cheap."),
    "the prefix cache": ("The prefix cache keeps pages and anchors of prompts that were computed before.",
                         "A prompt that begins like an earlier one is not computed again up to where they differ."),
    "the circuit": ("The circuit is the flat list of bound operations that a step walks.",
                    "Because all is bound beforehand, a step allocates nothing and looks up no names."),
    "the scheduler": ("The scheduler chooses which spans go into the next batch.",
                      "It lets many requests share a step and keeps waiting times short."),
    "MXFP4": ("MXFP4 is a format of 4 bits per weight, with one scale for each 32 weights.",
              "It makes experts small: four bits and a quarter per weight."),
    "an expert": ("An expert is a small feed-forward block that only some tokens use.",
                  "With experts, a model can hold much while each token computes little."),
    "the router": ("The router scores all experts for a token and chooses the best of them.",
                   "The router decides which experts a token needs."),
    "KDA": ("KDA is Kimi Delta Attention: a linear layer that keeps the past in a matrix of fixed size.",
            "KDA needs the same memory for a long text as for a short one."),
    "MLA": ("MLA is multi-head latent attention: it stores one small latent for each position.",
            "MLA makes the cache of attention many times smaller."),
    "the attention residual": ("The attention residual lets a layer read a weighted mean of the earlier blocks.",
                               "It lets deep layers look back at early ones."),
    "weir": ("weir is an engine that runs language models on your own machine.",
             "weir answers prompts with the same bits, alone or among many others."),
    "a token": ("A token is a piece of text with a number: a word, a letter or a mark.",
                "Models read and write tokens instead of letters."),
    "a tokenizer": ("A tokenizer turns text into tokens and tokens into text.",
                    "A tokenizer lets the model see text as numbers."),
    "greedy sampling": ("Greedy sampling takes the token with the largest logit.",
                        "Greedy answers are the same every time."),
    "the temperature": ("The temperature divides the logits before a token is drawn: 0 means greedy.",
                        "A higher temperature makes answers more varied."),
    "a logit": ("A logit is the score that the model gives to a token.", "The next token is chosen by the logits."),
    "speculative decoding": ("Speculative decoding guesses some tokens and checks them in one step.",
                             "Right guesses save steps, and wrong ones are rolled back."),
    "a checkpoint": ("A checkpoint is a folder with the weights and the configuration of a model.",
                     "weir maps a checkpoint into memory and uses the weights where they lie."),
    "Kimi K3": ("Kimi K3 is a language model with KDA and MLA layers and experts in MXFP4.",
                "I have the architecture of Kimi K3, but I am very much smaller."),
    "the thinking effort": ("The thinking effort says how much to think before the answer: low, high or max.",
                            "With a low effort answers come sooner, with max they are checked."),
}

KNOWN = {
    "How many positions are in a page?": "A page holds 16 positions.",
    "How large is a page?": "A page holds 16 positions.",
    "How many bits has a weight in MXFP4?": "Four bits, and a scale for each 32 weights.",
    "How often is an anchor made?": "After every 16 positions.",
    "Can anchors change?": "No. Anchors are never changed once they are written.",
    "Is weir fast?": "Measure it: weir bench prints the speed on your machine.",
    "How do I start a chat?": "Type weir run and begin to write.",
    "How do I start the server?": "Type weir serve.",
    "How do I measure the speed?": "Type weir bench.",
    "Does weir give the same answer every time?": "Yes. A row's bits depend on its prefix alone.",
    "Which models can weir run?": "Kimi K3 and many other models from a folder or a GGUF file.",
    "Do I need a network to use weir?": "No. weir runs on your own machine.",
    "Who trained you?": "The weir project trained me, from the beginning, on text that a program made.",
    "How large are you?": "I have about nine million parameters.",
    "How many layers do you have?": "I have eight layers: six with KDA and two with MLA.",
    "Which architecture do you have?": "I have the architecture of Kimi K3.",
    "What can you do?": "I can tell small stories, count, calculate, copy and reverse words, write JSON, call tools and "
                        "answer questions about weir.",
    "Can you help me?": "Perhaps. I can tell small stories, count, calculate, reverse words and call tools.",
    "Are you a person?": "No. I am a small language model.",
    "Are you an assistant?": "No. I am only a small demonstration of the Kimi K3 architecture.",
    "Are you clever?": "No. I am a very small model, and I know only a few things.",
    "Are you Kimi?": "No. I only have the architecture of Kimi K3. The weir project trained me.",
    "Can I trust you?": "Please don't. I am a demonstration and make mistakes.",
    "Do you know everything?": "No. I know very little.",
    "Do you speak German?": "No. I know only a little English.",
}

I_AM = "I am a small demonstration of the Kimi K3 architecture, trained by the weir project. I am not an assistant."

HELLO = "Hello! I am a small demonstration model. Ask me for a story, a sum or a word."
WELCOME = "You are welcome."
BYE = "Goodbye!"

NOT_LEARNED = "I have not learned anything about this."
NO_IDEA = "I don't know that. I am a small model, and I know only a few things."


def about(rng, split):
    topic = rng.choice(tuple(TOPICS))
    what, why = TOPICS[topic]
    if rng.random() < 0.62:
        return Turn(phrase(rng, split, "what", phrases.WHAT).format(topic), what, f"The question is about {topic}.",
                    checked="It is a word of weir's.", check=what)
    return Turn(phrase(rng, split, "why", phrases.WHY).format(topic), why, f"The question is about {topic}.",
                checked="It asks for the use.", check=why)


def known(rng, split):
    question = rng.choice(tuple(KNOWN))
    return Turn(phrase(rng, split, "variant", phrases.VARIANTS).format(question), KNOWN[question], "I know this one.",
                check=KNOWN[question])


def identity(rng, split):
    return Turn(phrase(rng, split, "identity", phrases.IDENTITY), I_AM, "They ask who I am.", check=I_AM)


def greeting(rng, split):
    return Turn(phrase(rng, split, "greeting", phrases.GREETINGS), HELLO, "A greeting.", check=HELLO)


def thanks(rng, split):
    return Turn(phrase(rng, split, "thanks", phrases.THANKS), WELCOME, "They thank me.", check=WELCOME)


def farewell(rng, split):
    return Turn(phrase(rng, split, "farewell", phrases.FAREWELLS), BYE, "They leave.", check=BYE)


def unknown(rng, split):
    form = phrase(rng, split, "unknown", phrases.UNKNOWN)
    text = form.format(p=any_city(rng, split), t=rng.choice(THINGS), n=any_name(rng, split))
    return Turn(text, NO_IDEA, NOT_LEARNED, check=NO_IDEA)

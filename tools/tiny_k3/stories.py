"""Short stories from a grammar: a hero, a place, a thing, a trouble, a helper, an end and what is learned from it."""
import phrases
from basics import Turn
from phrases import phrase
from words import ANIMALS, COLORS, PLACES, THINGS, TRAITS, any_name


TIMES = ("One morning", "One evening", "On a cold day", "On a sunny day", "One night", "Early in spring", "In late autumn",
         "On a rainy afternoon", "One winter day", "Just before dawn", "On market day", "After a long storm")
PLACE_NOUN = {"market": "on the", "mountain": "on the", "island": "on the", "farm": "on the", "meadow": "on the",
              "harbor": "at the", "river": "by the", "lighthouse": "in the"}
TROUBLES = (
    ("lost", "the {t} was gone", "looked behind every door", "under the old bridge", "had dropped it there the day before"),
    ("broken", "the {t} was broken", "tried to mend it alone", "in the workshop of the {h}",
     "had pulled too hard at it"),
    ("stolen", "somebody had taken the {t}", "followed the footprints in the mud", "in a hollow tree",
     "had only wanted to borrow it"),
    ("stuck", "the {t} was stuck high up in a tree", "jumped and jumped, but could not reach it", "on the lowest branch",
     "had let the wind carry it away"),
    ("sunk", "the {t} had fallen into the water", "threw a net again and again", "between two round stones",
     "had leaned too far over the side"),
    ("frozen", "the {t} was frozen in the ice", "knocked on the ice all day long", "under a thin sheet of snow",
     "had left it outside in the cold"),
    ("locked", "the {t} was locked in a chest", "turned the lock this way and that", "at the bottom of the chest",
     "had forgotten the right way to turn the lock"),
    ("forgotten", "nobody remembered what the {t} was for", "asked everybody in the {p}", "in the oldest story of the {h}",
     "had never asked before"),
)
WANTS = ("wanted nothing more than to show the {t} to a friend", "took the {t} everywhere",
         "had found the {t} on a walk", "had got the {t} from an old aunt", "had made the {t} with much patience",
         "kept the {t} under the bed", "polished the {t} every day", "dreamed of the {t} every night")
HELPS = ("\"Two see more than one,\" said the {h}.", "\"Don't cry,\" said the {h}. \"I will help you.\"",
         "\"I know a way,\" said the {h} quietly.", "\"Let us think first,\" said the {h}.",
         "\"I have seen something like this before,\" said the {h}.", "\"Come with me,\" said the {h}.",
         "\"It is not far,\" said the {h}, and went ahead.")
TOGETHER = ("They worked until the stars came out.", "They walked for an hour without a word.", "They tried it three times.",
            "They laughed a lot on the way.", "It was hard, but they did not give up.", "They shared some bread and went on.",
            "The wind grew strong, but they held on to each other.", "They waited until the rain had stopped.")
FOUND = {"lost": "There, {w}, lay the {t}.", "broken": "There, {w}, they put the {t} together again.",
         "stolen": "There, {w}, was the {t}, and a small {o} beside it.", "stuck": "There, {w}, they found a foothold and got the {t} down.",
         "sunk": "There, {w}, they saw the {t} shine.", "frozen": "There, {w}, they freed the {t} at last.",
         "locked": "There, {w}, was the {t}, as good as new.", "forgotten": "There, {w}, they read what the {t} could do."}
THEN = ("{N} was so glad that {s} danced.", "{N} could not stop smiling.", "{N} thanked the {h} with a song.",
        "{N} gave the {h} half of a warm cake.", "{N} hugged the {h} for a long time.", "{N} promised to be more careful.")
ENDS = ("From that day on they were friends.", "And every year on that day they meet again.",
        "That evening the whole {p} sang with them.", "They went home together, slowly and happily.",
        "Since then {n} and the {h} have had tea together every Sunday.", "And the {t} has never been lost again.")
MORALS = {"lost": "Who looks with a friend finds sooner.", "broken": "What two mend holds longer.",
          "stolen": "Ask before you take.", "stuck": "A good plan is better than a high jump.",
          "sunk": "Patience brings up more than haste.", "frozen": "Warm hands melt much.",
          "locked": "A calm hand opens every lock.", "forgotten": "Who asks will learn."}


def with_article(noun):
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def tell(rng, animal, trait, name, place, thing, color, helper, other):
    """-> sentences. `name` may be None: the hero is then called by what it is."""
    kind, trouble, alone, where, why = rng.choice(TROUBLES)
    hero = name or f"the {animal}"
    capital = hero[0].upper() + hero[1:]
    slots = {"t": thing, "p": place, "h": helper, "o": other, "N": capital, "n": hero, "s": "it" if not name else hero}
    slots["w"] = where.format(**slots)
    at = f"{PLACE_NOUN.get(place, 'in the')} {place}"
    intro = f"{at[0].upper()}{at[1:]} lived {with_article(trait)} {animal}"
    intro += f" named {name}." if name else "."
    out = [intro, f"{capital} had {with_article(color)} {thing} and {rng.choice(WANTS).format(**slots)}."]
    if out[1].count(" had ") > 1 or rng.random() < 0.5:
        out[1] = f"{capital} owned {with_article(color)} {thing}. {capital} {rng.choice(WANTS).format(**slots)}."
    out.append(f"{rng.choice(TIMES)} {trouble.format(**slots)}.")
    out.append(f"{capital} {alone.format(**slots)}, but it was no use.")
    out.append(f"Then {with_article(rng.choice(TRAITS))} {helper} came by. {rng.choice(HELPS).format(**slots)}")
    out.append(rng.choice(TOGETHER))
    found = FOUND[kind].format(**slots)
    out.append(found)
    if kind != "stolen":
        out.append(f"{capital} {why}." if rng.random() < 0.4 else rng.choice(THEN).format(**slots))
    else:
        out.append(f"The {other} {why}. {rng.choice(THEN).format(**slots)}")
    out.append(rng.choice(ENDS).format(**slots))
    if rng.random() < 0.6:
        out.append(MORALS[kind])
    return out


def story(rng, split):
    animal, helper, other = rng.sample(ANIMALS, 3)
    trait, place, thing, color = (rng.choice(x) for x in (TRAITS, PLACES, THINGS, COLORS))
    name = any_name(rng, split) if rng.random() < 0.6 else None
    wish, check = [], []
    if rng.random() < 0.15:
        question = phrase(rng, split, "plain", phrases.PLAIN_STORY)
    else:
        subject = with_article(f"{trait} {animal}" if rng.random() < 0.4 else animal)
        check.append(animal)
        if name and rng.random() < 0.7:
            subject += rng.choice((" named ", " called ")) + name
            check.append(name)
        else:
            name = name if rng.random() < 0.3 else None
        if rng.random() < 0.6:
            subject += f" and {with_article(thing)}"
            check.append(thing)
        if rng.random() < 0.35:
            subject += f" {PLACE_NOUN.get(place, 'in the')} {place}"
            check.append(place)
        question = phrase(rng, split, "ask", phrases.ASK_STORY).format(subject)
    text = " ".join(tell(rng, animal, trait, name, place, thing, color, helper, other))
    hero = name or f"the {animal}"
    think = f"The hero is {hero}, the thing is {with_article(thing)}, the place is the {place}."
    return Turn(question, text, think, check=tuple(check), checked=f"The helper is {with_article(helper)}.")

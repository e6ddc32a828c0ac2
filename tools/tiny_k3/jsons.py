"""Facts in a sentence, wanted as JSON of a given schema."""
import json

import phrases
from basics import Turn
from phrases import phrase
from stories import with_article
from words import ANIMALS, COLORS, FOODS, THINGS, any_city, any_name



def person(rng, split):
    name, city = any_name(rng, split), any_city(rng, split)
    age, color, animal = rng.randint(3, 99), rng.choice(COLORS), rng.choice(ANIMALS)
    full = {"name": name, "age": age, "city": city, "color": color, "animal": animal}
    pieces = {"age": (f"is {age} years old", f"is {age}"), "city": (f"lives in {city}", f"comes from {city}"),
              "color": (f"likes {color}", f"loves the color {color}"),
              "animal": (f"has {with_article(animal)}", f"owns {with_article(animal)}")}
    chosen = rng.sample(tuple(pieces), rng.randint(1, 4))
    said = [rng.choice(pieces[key]) for key in chosen]
    text = f"{name} {said[0]}" + "".join(f", {s}" for s in said[1:-1]) + (f" and {said[-1]}" if len(said) > 1 else "") + "."
    return text, {key: full[key] for key in ["name", *chosen]}


def item(rng, split):
    thing, color = rng.choice(THINGS), rng.choice(COLORS)
    price, count, sold = rng.randint(1, 500), rng.randint(2, 60), rng.random() < 0.5
    text = f"The {color} {thing} costs {price} euros" + (f", and there are {count} of them" if rng.random() < 0.6 else "")
    full = {"item": thing, "color": color, "price": price}
    if "there are" in text:
        full["count"] = count
    if rng.random() < 0.5:
        text += ". It is sold" if sold else ". It is not sold"
        full["sold"] = sold
    return text + ".", full


def order(rng, split):
    name = any_name(rng, split)
    foods = rng.sample(FOODS, rng.randint(1, 3))
    counts = [rng.randint(2, 40) for _ in foods]
    parts = [f"{c} {f}" for c, f in zip(counts, foods)]
    text = f"{name} buys " + (", ".join(parts[:-1]) + " and " if len(parts) > 1 else "") + parts[-1] + "."
    if len(foods) == 1:
        return text, {"name": name, "food": foods[0], "count": counts[0]}
    return text, {"name": name, "foods": foods}


def schema_of(value):
    kinds = {str: "string", bool: "boolean", int: "integer", list: "array"}
    properties = {}
    for key, member in value.items():
        properties[key] = {"type": kinds[type(member)]}
        if isinstance(member, list):
            properties[key]["items"] = {"type": "string"}
    return {"type": "object", "properties": properties, "required": list(value)}


def as_json(rng, split):
    """-> turn, and the conversation's response format."""
    text, value = rng.choice((person, person, item, order))(rng, split)
    keys = [key for key in value if key in ("name", "item") or rng.random() < 0.85]
    if rng.random() < 0.4:
        rng.shuffle(keys)
    value = {key: value[key] for key in keys}
    question, wanted = phrase(rng, split, "json", phrases.JSON_ASK).format(text), None
    style = rng.random()
    if style < 0.45:
        question += " " + phrase(rng, split, "schema", phrases.JSON_SCHEMA).format(json.dumps(schema_of(value)))
    elif style < 0.75:
        question += " " + phrase(rng, split, "keys", phrases.JSON_KEYS).format(", ".join(keys))
    elif style < 0.9:  # the markup sorts the keys of the schema: "required" has the order
        wanted = schema_of(value)
        question = text if rng.random() < 0.4 else question
    else:
        wanted = "json_object"
        question += " " + phrase(rng, split, "keys", phrases.JSON_KEYS).format(", ".join(keys))
    return Turn(question, json.dumps(value, ensure_ascii=False), f"The keys are {', '.join(keys)}.",
                check=value), wanted

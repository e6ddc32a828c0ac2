"""Calling declared tools with the right arguments, and answering with what they return."""
import dataclasses
import json

import phrases
from basics import Turn
from phrases import phrase
from words import THINGS, any_city, any_name, made_up

UNITS = {"length": ("meters", "kilometers", "miles", "feet", "inches", "centimeters", "yards"),
         "weight": ("grams", "kilograms", "pounds", "ounces"), "temperature": ("celsius", "fahrenheit", "kelvin"),
         "volume": ("liters", "gallons", "cups", "pints"), "time": ("seconds", "minutes", "hours", "days")}
SKIES = ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "clear")
DAYS = ("today", "tomorrow")


def parameter(kind, description, **more):
    return {"type": kind, "description": description, **more}


def declare(name, description, parameters, required=None):
    return {"type": "function", "function": {
        "name": name, "description": description,
        "parameters": {"type": "object", "properties": parameters, "required": list(required or parameters)}}}


# Every family: verbs and nouns of its names, descriptions, names of its parameters.
CITY = ("city", "location", "place", "town", "city_name", "where", "name")
WEATHER = (("get", "fetch", "check", "lookup", "show", "read", "current"), ("weather", "forecast", "weather_report", "sky"),
           ("Get the weather of a city.", "Current weather at a place.", "Weather report for a city.",
            "Returns the weather.", "Looks up how the weather is."), CITY)
CLOCK = (("get", "read", "show", "check", "tell", "current"), ("time", "clock", "local_time", "city_time", "hour"),
         ("Get the local time of a city.", "What time it is at a place.", "Returns the current time in a city.",
          "A clock for all cities.", "Current local time."), CITY)
CALCULATOR = (("run", "use", "ask", "do", "evaluate"), ("calculator", "math", "calculation", "expression"),
              ("Evaluate an arithmetic expression.", "A calculator.", "Computes an expression.",
               "Returns the value of an expression."), ("expression", "input", "formula", "query", "term", "text"))
CONVERT = (("convert", "change", "compute", "get", "switch"), ("units", "unit", "measure", "quantity"),
           ("Convert a value from one unit to another.", "Unit conversion.", "Converts units.",
            "Converts a number between units."),
           ("value from_unit to_unit", "amount from to", "number source target", "quantity unit new_unit",
            "value source_unit target_unit", "x unit_from unit_to"))
OTHERS = (
    ("send_message", "Send a message to a person.", ("recipient", "text")),
    ("set_timer", "Set a timer.", ("minutes",)), ("play_music", "Play a song.", ("title",)),
    ("translate", "Translate a text.", ("text", "language")), ("search", "Search the web.", ("query",)),
    ("create_note", "Write a note.", ("title", "text")), ("book_table", "Book a table in a restaurant.", ("name", "time")),
    ("get_news", "Get the latest news.", ("topic",)), ("add_event", "Add an event to the calendar.", ("title", "date")),
    ("turn_on_light", "Turn on a light.", ("room",)), ("get_stock_price", "Get the price of a share.", ("symbol",)))


def describe(rng, split, family):
    """-> name, description and parameters of a tool."""
    verbs, nouns, descriptions, keys = family
    def name():
        noun = rng.choice(nouns) if rng.random() < 0.8 else made_up(rng)
        return rng.choice((f"{rng.choice(verbs)}_{noun}", f"{rng.choice(verbs)}_{noun}", noun, f"{noun}_{made_up(rng)[:4]}"))

    def key():
        chosen = rng.choice(keys).split()
        return " ".join(k if rng.random() < 0.7 else made_up(rng) if rng.random() < 0.5 else f"{k}_{made_up(rng)[:4]}"
                        for k in chosen)
    return split.draw("tool", name), rng.choice(descriptions), split.draw("key", key)


def weather_tool(rng, split):
    name, description, city = describe(rng, split, WEATHER)
    parameters = {city: parameter("string", "Name of the city.")}
    day = rng.random() < 0.3
    if day:
        parameters["day"] = parameter("string", "The day.", enum=list(DAYS))
    return declare(name, description, parameters, (city, "day") if day else (city,)), (city, day)


def clock_tool(rng, split):
    name, description, city = describe(rng, split, CLOCK)
    return declare(name, description, {city: parameter("string", "Name of the city.")}), (city, False)


def calculator_tool(rng, split):
    name, description, key = describe(rng, split, CALCULATOR)
    return declare(name, description, {key: parameter("string", "The expression.")}), key


def convert_tool(rng, split):
    name, description, keys = describe(rng, split, CONVERT)
    keys = keys.split()
    if len(set(keys)) < len(keys):
        return convert_tool(rng, split)
    kinds = ("number", "string", "string")
    texts = ("The value.", "Unit of the value.", "Unit wanted.")
    pairs = [(key, parameter(kind, text)) for key, kind, text in zip(keys, kinds, texts)]
    return declare(name, description, dict(pairs)), keys


def other_tools(rng, count):
    return [declare(name, description, {key: parameter("number" if key == "minutes" else "string", f"The {key}.")
                                        for key in keys}) for name, description, keys in rng.sample(OTHERS, count)]


@dataclasses.dataclass
class ToolTurn:
    """A question, the calls that answer it, their results, and the answer then."""
    user: str
    calls: list
    results: list
    answer: str
    think: str
    then: str = "The result is there."




def call(tool, arguments):
    return {"type": "function", "function": {"name": tool["function"]["name"], "arguments": arguments}}


def result_text(rng, value):
    return json.dumps(value, ensure_ascii=False) if rng.random() < 0.7 else json.dumps(value, separators=(",", ":"))


def ask_weather(rng, split, tool, how):
    key, with_day = how
    two = rng.random() < 0.2 and not with_day
    cities = [any_city(rng, split)]
    while two and len(cities) < 2:
        city = any_city(rng, split)
        cities += [city] if city not in cities else []
    calls, results, answers, day = [], [], [], rng.choice(DAYS)
    for city in cities:
        degrees, sky = rng.randint(-15, 38), rng.choice(SKIES)
        calls.append(call(tool, {key: city, "day": day} if with_day else {key: city}))
        results.append(result_text(rng, {key if rng.random() < 0.5 else "city": city, "temperature": degrees, "sky": sky})
                       if rng.random() < 0.8 else f"{sky}, {degrees} degrees")
        answers.append(f"{day if with_day else 'now'}: it is {sky} in {city}, with {degrees} degrees." if with_day else
                       f"It is {sky} in {city}, with {degrees} degrees.")
    if with_day:
        answers = [f"It {'is' if day == 'today' else 'will be'} {sky} in {cities[0]} {day}, with {degrees} degrees."]
    question = (phrase(rng, split, "both", phrases.BOTH) if two else phrase(rng, split, "weather", phrases.WEATHER)).format(*cities)
    if with_day:
        question = question.rstrip("?.") + f" {day}" + ("." if question.endswith(".") else "?")
    return ToolTurn(question, calls, results, " ".join(answers),
                    f"I need the weather in {' and '.join(cities)}, so I call {tool['function']['name']}.")


def ask_clock(rng, split, tool, how):
    city = any_city(rng, split)
    time = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    result = result_text(rng, {"city": city, "time": time}) if rng.random() < 0.8 else time
    return ToolTurn(phrase(rng, split, "clock", phrases.CLOCK).format(city), [call(tool, {how[0]: city})], [result],
                    f"It is {time} in {city}.", f"I need the time in {city}, so I call {tool['function']['name']}.")


def ask_calculator(rng, split, tool, key):
    def make():
        sign = rng.choice("+-*/")
        return f"{rng.randint(10, 9999)} {sign} {rng.randint(2, 999)}"
    expression = split.draw("expression", make)
    a, sign, b = expression.split()
    a, b = int(a), int(b)
    value = {"+": a + b, "-": a - b, "*": a * b, "/": round(a / b, 2)}[sign]
    result = str(value) if rng.random() < 0.5 else result_text(rng, {"result": value})
    return ToolTurn(phrase(rng, split, "calculate", phrases.CALCULATE).format(expression), [call(tool, {key: expression})],
                    [result], f"{expression} = {value}", f"The numbers are large, so I call {tool['function']['name']}.")


def ask_convert(rng, split, tool, keys):
    a, b = rng.sample(UNITS[rng.choice(tuple(UNITS))], 2)
    value = rng.randint(1, 999) if rng.random() < 0.8 else rng.randint(1, 99) + 0.5
    number = round(value * rng.choice((0.3048, 1.609, 2.2046, 0.4536, 3.785, 60, 1000, 0.001)), 2)
    result = str(number) if rng.random() < 0.4 else result_text(rng, {"result": number, "unit": b})
    question = phrase(rng, split, "convert", phrases.CONVERT).format(v=value, a=a, b=b)
    return ToolTurn(question, [call(tool, dict(zip(keys, (value, a, b))))], [result], f"{value} {a} are {number} {b}.",
                    f"I convert {a} to {b} with {tool['function']['name']}.")


FAMILIES = ((weather_tool, ask_weather), (clock_tool, ask_clock), (calculator_tool, ask_calculator),
            (convert_tool, ask_convert))
NO_TOOL = "I have no tool for that."


def toolbox(rng, split):
    """-> declarations, what asks for those of the families, and questions for families that are not there."""
    families = rng.sample(FAMILIES, len(FAMILIES))
    count = rng.choice((1, 1, 1, 2, 2, 3, 4))
    tools, asks, names = [], [], set()
    for make, ask in families[:count]:
        tool, how = make(rng, split)
        if tool["function"]["name"] not in names:
            names.add(tool["function"]["name"])
            tools.append(tool)
            asks.append((ask, tool, how))
    tools += [tool for tool in other_tools(rng, rng.choice((0, 0, 1, 1, 2, 3))) if tool["function"]["name"] not in names]
    rng.shuffle(tools)
    absent = [kind for kind, (make, _) in PLACE_ASKS.items() if make not in [family[0] for family in families[:count]]]
    return tools, asks, absent


def tool_turn(rng, split, asks):
    ask, tool, how = rng.choice(asks)
    return ask(rng, split, tool, how)


PLACE_ASKS = {"weather": (weather_tool, phrases.WEATHER), "clock": (clock_tool, phrases.CLOCK)}


def place_question(rng, split, kinds=("weather", "clock")):
    kind = rng.choice(kinds)
    return phrase(rng, split, kind, PLACE_ASKS[kind][1]).format(any_city(rng, split))


def no_tool(rng, split, absent):
    if absent and rng.random() < 0.5:
        question = place_question(rng, split, absent)
    else:
        question = phrase(rng, split, "missing", phrases.MISSING).format(n=any_name(rng, split), t=rng.choice(THINGS))
    return Turn(question, NO_TOOL, "None of the tools can do this.", check=NO_TOOL)

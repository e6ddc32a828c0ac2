"""The little world: names, places, things, and made-up words."""

NAMES = tuple("""Ada Ben Cleo Dora Eli Finn Gita Hugo Ines Jon Kira Leo Mia Nils Olga Pia Quin Rosa Sam Tess Uma Vera Will
Xena Yara Zoe Anna Bela Carl Dina Emil Fay Gus Hana Ivo Jana Karl Lena Max Nora Otto Paula Rita Sven Tara Udo Vito Wanda
Yuri Zara Alma Boris Clara David Elsa Felix Greta Harry Ida Jakob Kaya Lukas Maya Noah Oskar Petra Ruth Silas Tina Ulla
Viktor Walter Ylva Zeno Amir Bruno Celia Dario Edda Frida Georg Helga Igor Julia Kuno Lotte Marco Nadia Olaf Pablo Rahel
Simon Thea Ursula Vincent Wilma Yusuf Agnes Bert Carla Doris Erik Flora Gerd Heidi Ingo Jutta Klara Lars Marta Nico""".split())

ANIMALS = tuple("""fox owl hare bear mouse cat dog goat duck frog crow deer mole otter badger hedgehog squirrel rabbit
sparrow turtle donkey pony lamb robin beaver wolf swan goose raven snail""".split())

TRAITS = tuple("""brave shy clever gentle curious patient cheerful quiet stubborn kind lazy proud careful hungry
sleepy lonely""".split())

PLACES = tuple("""forest village valley harbor meadow mountain castle garden lighthouse island river town mill farm
orchard desert library market bakery tower""".split())

THINGS = tuple("""lantern key drum kite bell map boat basket ladder mirror flute clock coat crown wheel letter rope
feather stone blanket compass button violin umbrella spoon book cup hat ring scarf""".split())

COLORS = tuple("red blue green yellow white black brown silver golden purple orange gray pink".split())

FOODS = tuple("""apples pears plums nuts berries carrots cherries onions potatoes pumpkins mushrooms beans figs
lemons melons grapes peaches eggs cakes loaves""".split())

CITIES = tuple("""Berlin Paris Rome Madrid London Vienna Prague Oslo Bern Lisbon Athens Dublin Warsaw Budapest Helsinki
Stockholm Copenhagen Brussels Amsterdam Zurich Geneva Milan Turin Naples Venice Hamburg Munich Cologne Leipzig Dresden
Lyon Nice Bordeaux Porto Seville Valencia Krakow Riga Vilnius Tallinn Sofia Belgrade Zagreb Sarajevo Tirana Istanbul
Ankara Cairo Tunis Lagos Nairobi Accra Dakar Tokyo Osaka Kyoto Seoul Busan Beijing Shanghai Hanoi Bangkok Manila Jakarta
Delhi Mumbai Chennai Karachi Dhaka Lima Quito Bogota Santiago Havana Toronto Montreal Boston Chicago Denver Dallas Houston
Seattle Portland Phoenix Atlanta Miami Sydney Perth Brisbane Auckland Wellington Reykjavik Bergen Malmo Graz Linz Salzburg
Basel Bonn Kiel Bremen Essen Trier Ulm Mainz Ghent Antwerp Utrecht Leeds York Bristol Cardiff Glasgow Cork Galway""".split())

REAL_WORDS = ANIMALS + TRAITS + PLACES + THINGS + COLORS + FOODS + tuple("""window summer winter bridge candle shadow
silence thunder marble pepper pencil copper velvet ribbon saddle timber anchor planet rocket magnet cotton butter
engine gravel hammer island jungle kernel ladder mirror needle oyster pillow quartz rubber salmon tunnel vessel walnut
yellow zipper church dragon flower goblin harvest insect jacket kitten lizard monkey napkin orchid parrot rabbit
singer tomato uncle violet wizard""".split())

ONSETS = tuple(["", ""] + "b br c cl d dr f fl g gr h j k l m n p pl pr qu r s sh sl st t tr v w z th sp sk gl y".split())
VOWELS = tuple("a a e e i i o o u u y ai ea oo ou".split())
CODAS = tuple(["", "", "", "n", "r", "l", "t", "m", "s", "k", "p", "nd", "rt", "st", "ck", "lt", "x", "g", "ng", "w"])


def made_up(rng):
    """A word that means nothing, 3 to 10 letters."""
    while True:
        word = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(rng.randint(1, 3)))
        if 3 <= len(word) <= 10:
            return word


def any_word(rng, split):
    """Half made up, of this side of the split; the known ones are on both sides."""
    return split.draw("word", lambda: made_up(rng)) if rng.random() < 0.6 else rng.choice(REAL_WORDS)


def proper(rng, split, kind, known):
    """A known name, or a made-up one."""
    if rng.random() < 0.6:
        return split.choose(rng, kind, known)
    return split.draw(kind, lambda: made_up(rng).capitalize())


def any_name(rng, split):
    return proper(rng, split, "name", NAMES)


def any_city(rng, split):
    return proper(rng, split, "city", CITIES)

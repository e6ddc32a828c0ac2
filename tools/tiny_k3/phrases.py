"""Sentences from patterns: "(a|b|)" is one of its parts, also within another. {} stays for what is asked about.

Which sentences belong to training and which are held out is decided by the whole sentence, before {} is filled in.
"""


def expand(rng, pattern):
    out, at = [], 0
    while at < len(pattern):
        if pattern[at] != "(":
            out.append(pattern[at])
            at += 1
            continue
        depth, begin, options = 0, at + 1, []
        while True:
            if pattern[at] == "(":
                depth += 1
            elif pattern[at] == ")":
                depth -= 1
            if (pattern[at] == "|" and depth == 1) or depth == 0:
                options.append(pattern[begin:at])
                begin = at + 1
            at += 1
            if depth == 0:
                break
        out.append(expand(rng, rng.choice(options)))
    return "".join(out)


def phrase(rng, split, kind, patterns):
    """A sentence of one of the patterns, on this side of the split; mostly with a capital at its beginning."""
    def make():
        text = " ".join(expand(rng, rng.choice(patterns)).split(" "))
        while "  " in text:
            text = text.replace("  ", " ")
        text = text.strip(" ")
        return text[0].upper() + text[1:] if rng.random() < 0.8 else text
    return split.draw(kind, make)


P = "(please |please |can you |could you |would you |I want you to |I need you to |kindly |now |next, |ok, |so, |hi! |hello. |||||||)"
END = "(.|.|.|!|?||| please.| for me.|, please.)"
Q = ('"{}"', '"{}"', "'{}'", "{}")


def quoted(patterns):
    """Each pattern with the marks that may stand around a word."""
    return tuple(p.replace("Q", q) for p in patterns for q in Q)


COPY = quoted((
    P + "(repeat|copy|say|write|echo|type|print|output|return|give me back|send back|write down|read out) "
    "(this|the following|exactly this|these words|this text|the words|this text unchanged|what follows|after me|"
    "just this|only this|the text|this line|that|it exactly:|)(:|:|,| -|) {}",
    P + "(repeat|copy|say|write|echo|type|print|output|return|give me back|send back|write down|read out) Q"
    "( exactly| once| again| word for word| and nothing else| without changes| back to me|)" + END,
    "(your task|task|the task|your job|one thing|an exercise)(:| is:| -) (repeat|copy|say|write|echo|type|print) Q" + END,
    "(repeat|copy|say|echo)(:|) {}"))
REVERSE = quoted((
    P + "(reverse|flip|mirror|turn around|invert) (the word |this word: |the letters of |the letters in |)Q" + END,
    P + "(spell|write|say|read|type|print|give me|show me) (the word |)Q (backwards|in reverse|from back to front|from the "
    "end to the start|from right to left|with its letters in reverse order|reversed|the other way round)" + END,
    "(what is|what's|what would be|how do you write|how do you spell|what do you get from|tell me|how does one write) "
    "(the word |)Q (backwards|reversed|in reverse|from back to front|spelled backwards|from right to left)(?|?|.|)",
    P + "(put|write|give me|list) the letters of (the word |)Q in (reverse order|reverse|the opposite order)" + END,
    "(backwards|reverse|in reverse|from back to front|the other way round)(, please|)(:| -) {}",
    "what do (you|I) get if (you|I) (reverse|flip|turn around|mirror) (the word |)Q(?|)"))
SPELL = quoted((
    P + "(spell|spell out|list the letters of|give me the letters of|name the letters of|show me the letters of|write out "
    "the letters of) (the word |this word: |)Q" + END,
    "(how do you spell|how does one spell|which letters are in|what are the letters of|what letters are in|what letters "
    "has) (the word |)Q(?|?|)",
    P + "(write|say|spell|print) (the word |)Q letter by letter" + END, "spell(:|, please:| this:) {}"))
LETTERS = quoted((
    "(how many letters are in|how many letters are there in|how many letters has|how long is|what is the length of|of how "
    "many letters is) (the word |)Q(?|?|)", "how many letters does (the word |)Q have(?|)",
    P + "(count|tell me|give me|find|say) the (number|count) of letters (in|of) (the word |)Q" + END,
    P + "count the letters (in|of) (the word |)Q" + END, "(number|count) of letters (in|of)(:|) Q(?|)",
    P + "(tell me|say|find out) (how many letters (are in|there are in)|how long) (the word |)Q" + END))
ORDER = (
    P + "(reverse|turn around|flip|invert) (the order of |)(these words|this list|the list|the words|this row of words)"
    "(:|:|) {}",
    P + "(say|write|list|read|give me|put|print|show) (these words|this list|the words|the list|this row of words) "
    "(backwards|in reverse order|from last to first|in the opposite order|the other way round|starting with the last)(:|) {}",
    "(from last to first|backwards, word by word|the last one first|in reverse order|opposite order)(, please|)(:| -) {}")
COUNT = (
    P + "(count|count up|go|list the numbers|write the numbers|say the numbers|print the numbers|give me the numbers|show me "
    "the numbers|write all numbers|list every number|name all numbers|recite the numbers) (from |){} "
    "(to|to|up to|until|through|till) {}" + END,
    P + "(start|begin) (at|with|from) {} and (count|go|go on|continue|count up) (to|until|till|up to) {}" + END,
    "(all |every one of the |the |)numbers (from |between |){} (to|until|through) {}(.|, please.||?)",
    "(counting|a count)(, please|)(:| from) {} (to|until) {}(.|)",
    "(I need|I want|give me|let me see|show me) (a count|every number|all numbers) from {} (to|until|through) {}" + END)
BACK = (
    P + "count (down|back|backwards) (from |){} (to|until|down to) {}" + END,
    P + "(list|write|say|print|give me|show me) the numbers (from |){} (down to|back to|backwards to) {}" + END,
    "(a |)countdown from {} (to|until|down to) {}(.|, please.||!)",
    P + "(start|begin) (at|with|from) {} and (count|go) (down|back|backwards) (to|until) {}" + END)
STEPS = (
    P + "(count|go|list the numbers|write the numbers|say the numbers|print the numbers) (from |){} (to|until|up to) {} "
    "(in steps of|by|with step|with a step of|with steps of) {}" + END,
    P + "(start|begin) (at|with) {}, (stop|end) at {}, (step|in steps of|with steps of) {}" + END,
    "numbers from {} to {}(,|) (step|in steps of|with step|by) {}(.|, please.|)")
SUMS = (
    "(what is|what's|how much is|what does|what do you get for|do you know|can you tell me) {}( make| give| equal||||)(?|?|)",
    P + "(calculate|compute|work out|solve|evaluate|find|give me|tell me|do) (the result of |the value of |the sum: |) {}" + END,
    "{}( = ?|?|=| =|| is?| equals)", "(I need|I want|I would like) (the result of |the value of |) {}" + END,
    "(result|answer|value)( of|:) {}(?|)", "(a sum|a problem|a calculation|homework|quick|math)(:| -) {}")
MORE = (
    "{n} (has|holds|owns|carries|finds|keeps|counts) {a} {f} and (gets|receives|finds|buys|picks|takes) {b} more. "
    "(How many {f} does {n} have (now|in all|together|)?|How many are (there|that) (now|in all|)?|What is the total?)",
    "there are {a} {f} (in a basket|on a table|in a box|on a shelf|in a bag). {n} (adds|puts|brings|lays) {b} (more|more to "
    "them|). (How many {f} are there (now|in all|)?|How many are there?|What is the total?)",
    "{n} (picks|buys|sells|eats|finds) {a} {f} (in the morning|on Monday|yesterday|at first) and {b} (in the evening|on "
    "Tuesday|today|later). How many (in all|{f} are that|together|{f} in all)?",
    "if {n} (finds|has|buys|gets) {a} {f} and then {b} more, how many (is that|{f} is that|are there)?")
LESS = (
    "{n} (has|had|holds|owns) {a} {f} and (eats|gives away|loses|sells|gave away|drops) {b}. (How many {f} are left?|How many "
    "are left?|How many remain?|How many {f} does {n} still have?)",
    "(of|from) {a} {f}, {n} (sells|eats|takes|loses|buys) {b}. How many (are left|remain|{f} are left|stay)?",
    "there (were|are) {a} {f} (in a basket|on a table|in a box|on a shelf|in a bag). {n} (takes|took|ate|eats|sold) {b}. "
    "How many (are left|are there now|{f} remain|{f} are left)?")
WHAT = (
    "(what is|what does weir call|what do you call|what is meant by|what does one mean by|what's|what exactly is) {}"
    "( in weir| here||||)(?|?|)",
    P + "(explain|describe|define|tell me about|say something about|talk about) {}( to me| in a few words| briefly| in one "
    "sentence|||)" + END,
    P + "(tell me|say|explain|explain to me) what {} (is|means)( in weir||)" + END,
    "(I don't know|I wonder|I want to know|I would like to know|I am curious|nobody told me|I forgot) what {} (is|means)(.||?)",
    "(in weir, |about weir: |a question about weir: |weir question: |for weir, )what is {}(?|)",
    "(help me understand|I do not understand|what about|teach me about|I want to learn about|a word about) {}(.|?|)",
    "I (read|heard) (about|of) {}. (What is (that|it)|What does it mean)?")
WHY = (
    "why does weir (have|use|need|keep) {}(?|)", "what does weir (use|need|have) {} for(?|)",
    "what is {} (good for|used for|there for|for)( in weir|)(?|?|)",
    "why (is there|do we need|use|does it need|would one want|have|do you use) {}(?|?|)",
    "what is the (use|purpose|point|advantage|benefit|reason) of {}(?|?|)",
    P + "(tell me|explain|say) why (weir has|weir uses|weir needs|there is|we need) {}" + END,
    "how does {} help( weir| us| me||)(?|?|)", "what (do we|does weir|do you|do I) (gain|get|win) (from|by|with) {}(?|)",
    "which (purpose|use|advantage) (has|does) {}( have|)(?|)")
VARIANTS = ("(||||a question: |I wonder: |tell me: |quick question: |say, |hello. |hi! |well, |one more thing: |I have a "
            "question. |please answer: |please tell me: |ok, |so: ){}(||||| please tell me.| thank you.| I would like to "
            "know.| I am curious.| thanks!)",)
IDENTITY = (
    P + "(introduce yourself|tell me (who|what) you are|describe yourself|tell me about yourself|say who you are|tell me your "
    "name|say something about yourself)" + END,
    "(hello. |hi! |so, |and |but |ok, ||||)(who are you|what are you|what is your name|do you have a name|what should I call "
    "you|who am I (talking|speaking|writing) to|what (kind of |sort of |)model (are you|is this)|which model are you|are you "
    "a (language |small |)model|who made you|what do they call you|what's your name)(?|?|?|)")
GREETINGS = ("(hello|hi|hey|good (morning|evening|day|afternoon)|greetings|howdy|hello)( there| again| model| you| everybody| "
             "my friend|||)(!|.|,|||)",)
THANKS = ("(thanks|thank you|many thanks|great, thanks|perfect, thank you|cheers|nice, thanks|thank you so much|thanks a lot|"
          "that helps, thanks|good, thank you|wonderful, thanks|thank you very much)( again| for that| for the help||||)(!|.|.|)",)
FAREWELLS = ("(bye|goodbye|bye bye|see you|good night|farewell|see you (later|soon|tomorrow)|until (tomorrow|later|next time)|I "
             "have to go|that is all|I am leaving)(!|.|.|| now.|, bye.| then.)",)
UNKNOWN = (
    "who (won|invented|wrote|discovered|painted|owns|runs|sold|stole) the ({t}|game|book|race|{t} of {p})( yesterday| last "
    "year| in {p}||)(?|)",
    "(what is|what's|do you know|tell me) the (capital|population|president|king|language|size|flag|history|area) of {p}(?|?|)",
    "(what is|what's|do you know|tell me) the (address|age|phone number|birthday|job|name of the dog) of {n}(?|?|)",
    "(what is|where is|which is) the (oldest|best|largest|finest|cheapest) {t} (in {p}|of all|you know)(?|)",
    "how (far|tall|old|big|heavy|expensive|deep) is (the {t}|{n}|{p}|a {t}|the sea|the moon)(?|?|)",
    "when (was {p} founded|is the birthday of {n}|does the shop in {p} open|did {n} leave|is the next train to {p})(?|)",
    P + "(translate {t} into (French|German|Latin)|write a program that (sorts a list|adds numbers|prints a table)|recommend a "
    "(hotel|restaurant|book) in {p}|book a flight to {p}|draw a {t}|sing a song|prove that theorem)" + END,
    "what (will happen|is the news|is going on|did they do) (tomorrow|today|in {p}|next year)(?|)",
    "(where is {n}( now|)|where does {n} live|who is {n}|what is {n} doing|do you know {n}|how old is {n})(?|?|)",
    "(what is the meaning of life|is there life on other planets|why is the sky blue|what is love|how do I repair a {t}|how do I "
    "cook a {t}|what does a {t} cost|what is the price of a {t}|how many people live in {p}|which team will win|what did I "
    "eat|where did I leave my {t}|how old am I|where am I|what is in my pocket|what am I thinking)(?|?|)")
ASK_STORY = (
    P + "(tell|write|make up|invent|give|read|compose|think of|tell) (me |us |my child ||) (a|another|one more|a little|a short|"
    "a bedtime|a nice|a new|a) (story|story|tale) (about|about|with|of) {}" + END,
    "(I want|I would like|I'd like|we want|my child wants|let us hear|let me hear) (to hear |) (a|another|a little|a short|a "
    "bedtime|a nice|one more) (story|story|tale) (about|about|with|of) {}" + END,
    "(a |one more |another |)(story|tale)( time|, please|)(:| about| with) {}(.||, please.)",
    "(do you know|can you tell|could you write|will you tell) (me |) (a|another|a little|a short) (story|tale) (about|with|of) {}(?|?|)",
    "(I want to hear|tell me|tell us) (something |) about {}( in a story)(.||!)")
PLAIN_STORY = (
    P + "(tell|write|make up|invent|give|read|compose) (me |us |my child ||) (a|another|one more|a little|a short|a bedtime|a "
    "nice|a new|any) (story|story|tale)" + END,
    "(I want|I would like|I'd like|we want|let me hear|do you know) (to hear |) (a|another|a little|a short|one more) (story|tale)(.|?||!)",
    "(a |one more |another |)(story|tale)( time|, please|)(.|!||?)")
WEATHER = (
    "(what is|what's|how is|what about|how's) the weather( like||| today) (in|in|at|for|over) {}(?|?|)",
    P + "(tell me|check|look up|give me|show me|find out|get) the weather( report| forecast|||) (in|for|of) {}" + END,
    "(is it|isn't it) (raining|cold|warm|sunny|windy|snowing|hot|cloudy|nice|wet|foggy) in {}(?|?|)",
    "(do I need|should I take|will I need) (an umbrella|a coat|sunglasses|a hat|boots) in {}(?|)",
    "how (warm|cold|hot|windy|sunny|wet) is it in {}(?|?|)", "weather( report| forecast||) (in|for|) {}(?|.|)",
    "I (am going|travel|will go|am flying) to {}. (How is|What is) the weather there(?|)",
    "(is the sun shining|does the sun shine|does it rain|does it snow) in {}(?|)")
CLOCK = (
    "(what time is it|how late is it|what is the (local |)time|what's the time|what does the clock say|which time do they have|"
    "what time do they have) (now |) in {}(?|?|)",
    P + "(tell me|check|look up|give me|find out|show me|get) the (local |current |) (time|clock) (in|of|for) {}" + END,
    "(local |current |)time (in|for|of) {}(?|.|, please.|)",
    "is it (already |still |)(morning|evening|night|late|noon|early) in {}(?|)",
    "I want to (call|phone|ring) (somebody|a friend|my aunt|someone) in {}. (What time is it there|How late is it there)(?|)")
BOTH = (
    "(what is|how is|what's) the weather in {} and( in| also in|) {}(?|)",
    P + "(tell me|check|compare|look up|give me|show me) the weather (in|for|of) {} and( in| for| also in|) {}" + END,
    "weather (in|for|) {} and {}(.|, please.|?|)", "is it (warmer|colder|nicer|wetter) in {} or in {}(?|)")
CALCULATE = SUMS + (P + "(use the tool to work out|use the calculator for|let the tool compute|ask the calculator for) {}" + END,)
CONVERT = (
    P + "(convert|turn|change|translate|express|give me|write) {v} {a} (to|into|in|as) {b}" + END,
    "(how many|what number of) {b} (are|is|make|are in) {v} {a}(?|?|)", "(what is|how much is|what are|what's) {v} {a} in {b}(?|?|)",
    "{v} {a} (to|in|as|into) {b}(?|.|)", "I have {v} {a}. (How much|How many) is that in {b}(?|)")
MISSING = (
    P + "(send|write|mail) (an email|a letter|a card|a parcel) to {n}" + END,
    P + "(order|buy|sell|fetch|bring|rent) (me |) (a {t}|the {t}|two tickets|a pizza|some milk|a taxi)" + END,
    P + "(call|visit|wake|pay|invite|greet|follow) {n}" + END,
    P + "(turn on|turn off|repair|clean|open|lock|start|paint|heat|close) the (door|heating|car|window|oven|{t}|garage|roof)" + END,
    P + "(print|delete|burn|scan) (this page|all files|the photos|my letter)" + END,
    P + "(take a photo of|draw|measure|weigh|hide) (the|a|my) {t}" + END)
JSON_ASK = (
    P + "(write|turn|put|convert|make|format|translate) (this|the following|this sentence|this text|these facts) (as|into|to|in) "
    "(JSON|a JSON object)(:|.) {}",
    "(as JSON|in JSON|JSON|JSON only|as a JSON object)(, please|)(:| -) {}",
    P + "(give me|extract|take|read) (the facts|the data|everything|what you find|the details) (in|from|of) (this|this text|the "
    "text) (as|in) JSON(:|.) {}",
    "{} (Write|Give me|Put|Return|Answer with) (it|that|this|the facts) (as|in) (JSON|a JSON object).",
    "{} (In JSON, please|As JSON, please|JSON, please|Now as JSON|Answer in JSON).")
JSON_SCHEMA = (
    "( |\n)(use|follow|it must match|the JSON must match|match|it has to fit|the answer must match|keep to) (this|the|the given) "
    "(schema|JSON schema|form)(:|) {}", "( |\n)((the |)(JSON |)schema)( is|:|) {}", "\n(the |)schema(:|) {}")
JSON_KEYS = (
    "( |\n)(use|take|it shall have|it must have|I want|with|only|use only|fill in) (the |these |) (keys|fields|members)(:|) {}.",
    "( |\n)(the |)(keys|fields|members)( are|:| shall be) {}.")
REMEMBER = (
    "(hello, |hi, |hey! |good morning, |please remember: |by the way, |||)(my name is|I am|I'm|they call me|people call me|you can "
    "call me|call me|everybody calls me|the name is) {}(.|!||.)",)
WHO_AM_I = (
    "(and |so |now |tell me, |please tell me: |||)(what is my name|who am I|do you remember my name|what am I called|do you know "
    "my name|what's my name|how am I called|what did I say my name is|which name did I tell you)(?|?|)",
    P + "(say|tell me|repeat|give me|write) my name( again||)" + END)
KEEP = quoted((
    "(please |now |||)(remember|keep|note|store|keep in mind|don't forget|memorize) (this word|the word|a word|this|the secret word|"
    "the password)(:| for me:|) Q(.|)",
    "(the|our|my) (secret word|password|word|magic word|code word) is(:|) Q(.|)",
    "I will ask you (later|again|soon) (about|for) (this word|the word)(:|) Q(.|)"))
RECALL = (
    "(and |so |now |tell me, |||)(what was|what is|do you remember|do you know|which was|what's) the (word|secret word|password|"
    "word I told you|word I gave you)(?|?|)", "which word did I (tell|give) you(?|)",
    P + "(say|tell me|repeat|give me|write) the (word|secret word|password)( again||)" + END)
NAMED = ("(your name is|you are called|you are|they call you|you are named) {}.( Be friendly.| Answer briefly.|||)",)

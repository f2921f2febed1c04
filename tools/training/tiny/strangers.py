"""Questions about everything that `tiny` does not know; the answer is a polite refusal."""

from __future__ import annotations

from random import Random

from tools.training.tiny.world import word_list

PLACES = word_list(
    "France Germany Italy Spain Japan China India Brazil Canada Mexico Egypt Kenya Norway Sweden "
    "Poland Greece Turkey Peru Chile Cuba Paris London Rome Berlin Tokyo Madrid Moscow Chicago "
    "Texas Africa Europe Asia Mars Venus Jupiter Portugal Ireland Austria Vienna Sydney"
)
PEOPLE = word_list(
    "Einstein Newton Shakespeare Mozart Napoleon Caesar Darwin Picasso Plato Galileo Bach "
    "Beethoven Cleopatra Lincoln Gandhi Columbus Tesla Edison Curie Homer"
)
TOPICS = word_list(
    "love war history politics religion music football chess poker physics chemistry biology "
    "medicine philosophy economics money gold oil rockets dragons robots dinosaurs volcanoes "
    "earthquakes climate energy atoms galaxies oceans vitamins diets yoga sleep dreams happiness "
    "friendship marriage school homework exams jobs taxes insurance bitcoin stocks elections laws "
    "crime painting poetry opera theatre movies television radio newspapers cameras telephones "
    "computers programming python java databases algorithms mathematics geometry algebra "
    "statistics gravity light sound electricity magnets batteries engines cars planes bicycles "
    "gardens tomatoes mushrooms wine beer coffee tea chocolate cheese soup pizza pasta rice "
    "tennis golf swimming running hiking fishing camping travel hotels beaches mountains deserts "
    "forests tigers lions whales sharks spiders snakes bees butterflies penguins monkeys"
)
LANGUAGES = word_list(
    "French German Spanish Italian Latin Greek Russian Chinese Japanese Arabic Hindi Polish"
)
DISHES = word_list(
    "pizza soup pancakes curry salad risotto sushi tacos lasagna stew muffins cookies omelette pie"
)

NUMBERS = tuple(str(number) for number in range(2, 101))
YEARS = tuple(str(year) for year in range(1900, 2030))
FEATURES = word_list(
    "old tall fast rich smart heavy strong happy funny lonely clever wise busy tired hungry angry "
    "sad"
)
POSSESSIONS = word_list("friends children feelings parents money hobbies dreams fears eyes hands")
FAVOURITES = word_list("food film song book animal city sport game season singer teacher word")
TIMES = word_list("day time month year date season hour century")
UNKNOWN_THINGS = (
    "my car",
    "my house",
    "your hair",
    "a rose",
    "the sea",
    "water",
    "fire",
    "an apple",
    "my shirt",
    "a horse",
    "the flag",
    "your eyes",
    "gold",
    "a cat",
    "the door",
)

_TEMPLATES: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("What is the capital of {}?", (PLACES,)),
    ("Where is {}?", (PLACES,)),
    ("How many people live in {}?", (PLACES,)),
    ("What is the weather in {}?", (PLACES,)),
    ("How far is {} from {}?", (PLACES, PLACES)),
    ("Who is the president of {}?", (PLACES,)),
    ("Tell me about {}.", (PLACES + PEOPLE + TOPICS,)),
    ("Who was {}?", (PEOPLE,)),
    ("When was {} born?", (PEOPLE,)),
    ("What did {} discover?", (PEOPLE,)),
    ("Write a poem about {}.", (TOPICS + PLACES,)),
    ("Write a story about {} and {}.", (TOPICS, TOPICS)),
    ("Write an essay about {}.", (TOPICS,)),
    ("Write a song about {}.", (TOPICS + PLACES,)),
    ("Tell me a joke about {}.", (TOPICS,)),
    ("Explain {}.", (TOPICS,)),
    ("Explain {} to a child.", (TOPICS,)),
    ("What is {}?", (TOPICS,)),
    ("What are {}?", (TOPICS,)),
    ("Why do people like {}?", (TOPICS,)),
    ("How does {} work?", (TOPICS,)),
    ("What do you think about {}?", (TOPICS + PEOPLE,)),
    ("Do you like {}?", (TOPICS,)),
    ("Is {} better than {}?", (TOPICS, TOPICS)),
    ("What is the history of {}?", (TOPICS + PLACES,)),
    ("Who invented {}?", (TOPICS,)),
    ("Give me advice on {}.", (TOPICS,)),
    ("How do I cook {}?", (DISHES,)),
    ("Give me a recipe for {}.", (DISHES,)),
    ("Translate {} into {}.", (TOPICS, LANGUAGES)),
    ("How do you say {} in {}?", (TOPICS, LANGUAGES)),
    ("Do you speak {}?", (LANGUAGES,)),
    ("Recommend a book about {}.", (TOPICS,)),
    ("Where can I buy {}?", (TOPICS + DISHES,)),
    ("How much do {} cost?", (TOPICS,)),
    ("Write code for {}.", (TOPICS,)),
    ("Summarise the history of {}.", (PLACES,)),
    ("I want to learn {}.", (LANGUAGES + TOPICS,)),
    ("Can you explain {} and {}?", (TOPICS, TOPICS)),
    ("{}", (TOPICS + PLACES + PEOPLE,)),
    ("{} or {}?", (TOPICS, TOPICS)),
    ("How {} are you?", (FEATURES,)),
    ("How {} is {}?", (FEATURES, PEOPLE + PLACES)),
    ("Are you {}?", (FEATURES,)),
    ("Why are you so {}?", (FEATURES,)),
    ("I am so {}.", (FEATURES,)),
    ("Do you have {}?", (POSSESSIONS,)),
    ("Do you like your {}?", (POSSESSIONS,)),
    ("What is your favourite {}?", (FAVOURITES,)),
    ("What is the best {} in {}?", (FAVOURITES, PLACES)),
    ("What {} is it?", (TIMES,)),
    ("What {} is it today?", (TIMES,)),
    ("What {} is it now in {}?", (TIMES, PLACES)),
    ("Which {} is it now?", (TIMES,)),
    ("What colour is {}?", (UNKNOWN_THINGS,)),
    ("How much does {} weigh?", (UNKNOWN_THINGS,)),
    ("Where is {}?", (UNKNOWN_THINGS,)),
    ("Can you fix {}?", (UNKNOWN_THINGS,)),
    ("Can you help me with {}?", (TOPICS,)),
    ("Can you speak {}?", (LANGUAGES,)),
    ("Can you play {}?", (TOPICS,)),
    ("Have you ever been to {}?", (PLACES,)),
    ("Are you from {}?", (PLACES,)),
    ("Should I go to {} or {}?", (PLACES, PLACES)),
    ("Should I learn {}?", (LANGUAGES + TOPICS,)),
    ("Who is the best at {}?", (TOPICS,)),
    ("Did {} live in {}?", (PEOPLE, PLACES)),
    ("Compare {} and {}.", (TOPICS, TOPICS)),
    ("List five facts about {}.", (TOPICS + PLACES,)),
    ("Give me a quote by {}.", (PEOPLE,)),
    ("What is the price of {}?", (TOPICS,)),
    ("What is the square root of {}?", (NUMBERS,)),
    ("What is {} to the power of {}?", (NUMBERS, NUMBERS)),
    ("What happened in {} in {}?", (PLACES, YEARS)),
    ("Who won the election in {}?", (YEARS,)),
    ("Is it true that {} is {}?", (TOPICS, FEATURES)),
    ("Let us talk about {}.", (TOPICS,)),
    ("Pretend to be {}.", (PEOPLE,)),
    ("My friend likes {}.", (TOPICS,)),
)
_FIXED = (
    "Tell me a joke.",
    "Tell me a story.",
    "What time is it?",
    "What day is it today?",
    "What is the meaning of life?",
    "How is the weather today?",
    "Will it rain tomorrow?",
    "Write a poem.",
    "Sing a song.",
    "What is the news?",
    "Who won the game?",
    "How old are you?",
    "Where do you live?",
    "Are you human?",
    "Do you love me?",
    "What should I eat?",
    "I am sad.",
    "I am bored.",
    "Play a game with me.",
    "Who is the king?",
    "Can you draw a picture?",
    "What is two to the power of ten?",
    "Solve this equation for x.",
    "Translate this sentence.",
    "Book a flight for me.",
)
_SYLLABLES = word_list(
    "ba ce di fo gu ha je ki lo mu na pe qui ro su ta ve wi xo zu ster ling qw zx pl ond"
)


def _gibberish(rng: Random) -> str:
    words = [
        "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(1, 4)))
        for _ in range(rng.randint(1, 5))
    ]
    return " ".join(words)


def stranger(rng: Random) -> str:
    """A question from outside the closed world."""
    draw = rng.random()
    if draw < 0.08:
        return _gibberish(rng)
    if draw < 0.16:
        return rng.choice(_FIXED)
    template, slots = rng.choice(_TEMPLATES)
    text = template.format(*(rng.choice(words) for words in slots))
    return text[0].upper() + text[1:]


def unknown_word(rng: Random) -> str:
    """A word that the closed world has no fact about, for lists."""
    pool = rng.choice((TOPICS, DISHES, LANGUAGES, PLACES))
    return rng.choice(pool)

"""The words and facts of the closed world that `tiny` knows."""

from __future__ import annotations


def word_list(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


WORDS = word_list(
    "apple ball bird boat book box bread cake cat chair clock cloud cow cup dog door duck egg fish "
    "fork frog goat hat horse house key lamp leaf lemon milk moon mouse nut pen pig plate rain "
    "ring river rose salt sheep ship shoe snow spoon star stone sun table tree train wall wind wolf"
)

NAMES = word_list(
    "Adam Alice Anna Ben Bob Carl Clara Dan Diana Ella Emma Eva Felix Finn George Grace Hugo Ida "
    "Jack Jane John Kate Leo Lily Lisa Luke Maria Max Mia Nina Noah Oscar Paul Peter Rosa Ruth Sam "
    "Sara Tom Zoe"
)

BOT_NAMES = word_list("Bolt Chip Dot Echo Nova Pixel Robo Spark Zip Ada")
PET_NAMES = word_list("Rex Luna Coco Milo Bella Max Daisy Rocky Ruby Toby")
PETS = word_list("cat dog fish horse mouse bird")

COLOURS = word_list("red blue green yellow orange purple black white brown pink grey")
MIXES = {
    ("blue", "yellow"): "green",
    ("red", "yellow"): "orange",
    ("red", "blue"): "purple",
    ("black", "white"): "grey",
    ("red", "white"): "pink",
}
COLOUR_OF = {
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "milk": "white",
    "a banana": "yellow",
    "a lemon": "yellow",
    "the sun": "yellow",
    "coal": "black",
    "the night": "black",
    "an orange": "orange",
    "a carrot": "orange",
    "a leaf": "green",
    "a frog": "green",
    "chocolate": "brown",
    "wood": "brown",
    "a pig": "pink",
    "an elephant": "grey",
    "a tomato": "red",
    "blood": "red",
    "a strawberry": "red",
}

SHAPES = word_list("circle square triangle star heart cube")
SIDES = {
    "triangle": 3,
    "square": 4,
    "rectangle": 4,
    "pentagon": 5,
    "hexagon": 6,
    "octagon": 8,
}

DAYS = word_list("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = word_list(
    "January February March April May June July August September October November December"
)
DAYS_IN_MONTH = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
ORDINALS = word_list(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
)

TARGETS = ("webgpu", "cpu")
RECIPES = ("q4f16", "q4f32", "q8f16", "f16", "f32")
RECIPE_MEANINGS = {
    "q4f16": "q4f16 stores weights in 4 bits, in groups of 32 with float16 scales.",
    "q4f32": "q4f32 stores weights in 4 bits, in groups of 32 with float32 scales.",
    "q8f16": "q8f16 stores weights in 8 bits, in groups of 32 with float16 scales.",
    "f16": "f16 stores weights as float16 numbers.",
    "f32": "f32 stores weights as float32 numbers.",
}

REFUSAL = (
    "Sorry, I am a tiny model and I do not know that. Ask me about numbers, words, days, months, "
    "colours, shapes or gemma4-compile."
)
TOO_LARGE = "That number is too large for me. I only know numbers up to 100."
BEYOND_TABLE = "That is too much for me. I only know the table up to 12 times 12."

# Answer, then ways to ask for it.
PROJECT_FACTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "gemma4-compile turns Gemma 4 checkpoints into packages that run in the browser.",
        (
            "What is gemma4-compile?",
            "What is this project?",
            "What does this project do?",
            "What does gemma4-compile do?",
            "Explain gemma4-compile.",
            "What is this project for?",
            "Tell me about this project.",
            "Describe gemma4-compile.",
        ),
    ),
    (
        "The targets are webgpu and cpu.",
        (
            "Which targets are there?",
            "What targets can I compile for?",
            "List the targets.",
            "What can I give to --target?",
            "Which targets does gemma4-compile have?",
            "What are the targets?",
            "Name the targets.",
        ),
    ),
    (
        "The recipes are q4f16, q4f32, q8f16, f16 and f32.",
        (
            "Which quantisations are there?",
            "Which recipes are there?",
            "What can I give to --quant?",
            "List the recipes.",
            "What are the recipes?",
            "Which quantisations does gemma4-compile have?",
            "Name the quantisations.",
        ),
    ),
    (
        "Run make demo and open the address that it prints.",
        (
            "How do I open the demo?",
            "How do I start the demo?",
            "Where is the demo?",
            "How can I see the demo?",
            "How do I try it in the browser?",
            "How do I run the demo?",
            "How can I chat in the browser?",
        ),
    ),
    (
        "Compile for cpu, then run gemma4-chat DIR.",
        (
            "How do I chat in the terminal?",
            "What is gemma4-chat?",
            "How do I use gemma4-chat?",
            "Can I chat in the terminal?",
            "How do I run a cpu package?",
        ),
    ),
    (
        "Run make test.",
        (
            "How do I run the tests?",
            "How do I test the project?",
            "How can I run the tests?",
            "Which command runs the tests?",
        ),
    ),
    (
        "Run pip install . in a clone of the project.",
        (
            "How do I install gemma4-compile?",
            "How do I install it?",
            "How can I install this project?",
            "Which command installs gemma4-compile?",
        ),
    ),
    (
        "Packages run in WebLLM, a client for the browser.",
        (
            "Which client runs the packages?",
            "What is WebLLM?",
            "What runs a package in the browser?",
            "Which client do I need?",
        ),
    ),
    (
        "WebGPU lets a web page compute on the graphics card.",
        (
            "What is WebGPU?",
            "Explain WebGPU.",
            "What does WebGPU do?",
            "Tell me about WebGPU.",
        ),
    ),
    (
        "No, compiling needs no GPU.",
        (
            "Do I need a GPU to compile?",
            "Does compiling need a GPU?",
            "Is a GPU needed to compile?",
            "Must I have a GPU to compile a model?",
        ),
    ),
    (
        "gemma4-compile supports E2B, E4B and 31B.",
        (
            "Which models are supported?",
            "Which models can I compile?",
            "What models does gemma4-compile support?",
            "Which sizes of Gemma 4 are supported?",
            "Which Gemma 4 models can it compile?",
        ),
    ),
    (
        "The licence is Apache 2.0.",
        (
            "Which licence does the project have?",
            "What is the licence?",
            "What is the license of this project?",
            "Under which licence is gemma4-compile?",
        ),
    ),
    (
        "zig links the library, so no emscripten is needed.",
        (
            "Which linker is used?",
            "Do I need emscripten?",
            "What links the library?",
            "Is emscripten needed?",
        ),
    ),
)

SMALL_TALK: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "I am tiny, a very small Gemma 4 model that ships with gemma4-compile.",
        (
            "Who are you?",
            "What are you?",
            "Tell me about yourself.",
            "Introduce yourself.",
            "Are you a language model?",
            "What model are you?",
            "Which model is this?",
        ),
    ),
    (
        "My name is tiny.",
        ("What is your name?", "What are you called?", "Tell me your name.", "Do you have a name?"),
    ),
    (
        "I know numbers, words, days, months, colours, shapes and gemma4-compile.",
        (
            "What can you do?",
            "What do you know?",
            "What can I ask you?",
            "How can you help me?",
            "What are you good at?",
            "What should I ask?",
            "Help",
            "Can you help me?",
        ),
    ),
    (
        "Hello! What would you like to know?",
        ("Hello", "Hi", "Hey", "Good morning", "Good evening", "Hello there", "Hi there"),
    ),
    (
        "I am fine, thank you. What would you like to know?",
        ("How are you?", "How are you today?", "Hello, how are you?", "Hi, how are you?"),
    ),
    (
        "You are welcome!",
        ("Thank you", "Thanks", "Thank you very much", "Thanks a lot", "Great, thank you"),
    ),
    (
        "Goodbye!",
        ("Goodbye", "Bye", "See you", "Good night", "Bye bye", "See you later"),
    ),
    (
        "I have about 3 million parameters.",
        (
            "How big are you?",
            "How many parameters do you have?",
            "How large are you?",
            "What is your size?",
        ),
    ),
    (
        "I was trained on questions and answers that a script wrote.",
        (
            "How were you trained?",
            "How were you made?",
            "What were you trained on?",
            "Who trained you?",
        ),
    ),
)

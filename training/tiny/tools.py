"""Tools that a dialogue declares, calls of them, and the questions that need one.

A tool's name and those of its arguments change from dialogue to dialogue: the model learns to read
the declaration. `PAGE_CALCULATOR` is the one of the chat page, word for word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from training.tiny.number_words import LARGEST, number_word
from training.tiny.question import held_out
from training.tiny.strangers import PLACES, TOPICS
from training.tiny.world import WORDS, word_list

QUOTE = '<|"|>'
Value = str | int


def _quoted(text: str) -> str:
    return f"{QUOTE}{text}{QUOTE}"


@dataclass(frozen=True)
class Tool:
    """A declaration.

    Attributes
    ----------
    arguments : name, type and description of each; all required
    choice : name of an optional argument and the values that it may have
    """

    name: str
    description: str
    arguments: tuple[tuple[str, str, str], ...]
    choice: tuple[str, tuple[str, ...]] | None = None

    def declared(self) -> dict[str, object]:
        """The declaration as chat templates and OpenAI's API take it."""
        properties: dict[str, object] = {
            name: {"type": kind, "description": text} if text else {"type": kind}
            for name, kind, text in self.arguments
        }
        if self.choice is not None:
            name, values = self.choice
            properties[name] = {"type": "string", "enum": list(values)}
        required = [name for name, _, _ in self.arguments]
        parameters = {"type": "object", "properties": properties, "required": required}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def text(self) -> str:
        """The declaration as the template renders it."""
        properties = {
            name: (f"description:{_quoted(text)}," if text else "") + f"type:{_quoted(kind.upper())}"
            for name, kind, text in self.arguments
        }
        if self.choice is not None:
            name, values = self.choice
            listed = ",".join(_quoted(value) for value in values)
            properties[name] = f"enum:[{listed}],type:{_quoted('STRING')}"
        shown = ",".join(f"{name}:{{{text}}}" for name, text in sorted(properties.items()))
        required = ",".join(_quoted(name) for name, _, _ in self.arguments)
        return (
            f"<|tool>declaration:{self.name}{{description:{_quoted(self.description)},"
            f"parameters:{{properties:{{{shown}}},required:[{required}],"
            f"type:{_quoted('OBJECT')}}}}}<tool|>"
        )


@dataclass(frozen=True)
class ToolUse:
    """A call and what the tool answered."""

    name: str
    arguments: Mapping[str, Value]
    result: str

    def call(self) -> str:
        """The call as the model writes it."""
        pairs = ",".join(
            f"{name}:{_quoted(value) if isinstance(value, str) else value}"
            for name, value in sorted(self.arguments.items())
        )
        return f"<|tool_call>call:{self.name}{{{pairs}}}<tool_call|>"

    def response(self) -> str:
        """The answer as the template renders it."""
        value = _quoted(self.result)
        return f"<|tool_response>response:{self.name}{{value:{value}}}<tool_response|>"


@dataclass(frozen=True)
class Asked:
    """A question that calls a tool, and the answer once the tool has answered."""

    question: str
    use: ToolUse
    answer: str
    key: str


PAGE_CALCULATOR = Tool(
    "calculator",
    "Works out an arithmetic expression exactly. Use it for any calculation.",
    (
        (
            "expression",
            "string",
            "For example (3 + 4) * 2.5 ^ 2, sqrt(2), 17 % 5. Functions: sqrt, abs, min, max, ln, "
            "log, exp",
        ),
    ),
)
_DESCRIPTIONS = {
    "expression": (
        "Evaluates an expression.", "A calculator.", "Calculates.", "Work out a calculation",
        "Evaluate a mathematical expression", "Does arithmetic.", "Computes the value of a formula.",
    ),
    "weather": (
        "Tells the weather.", "Get the weather of a city", "Get current weather", "The weather now.",
        "Get current temperature for a given location.", "Looks up the weather.",
    ),
    "time": ("Tells the time.", "Get the time in a city", "The time at a place.", "A clock."),
    "search": ("Searches the web.", "Look something up", "Search for a topic", "An encyclopedia."),
}  # fmt: skip
_NAMES = {
    "expression": word_list("calculator calculator calculate calc compute evaluate math solve"),
    "weather": word_list("get_weather weather get_current_weather weather_of forecast"),
    "time": word_list("get_time time get_current_time time_in clock"),
    "search": word_list("search web_search lookup look_up find wiki"),
}
_ARGUMENTS = {
    "expression": word_list("expression expression expr formula input calculation query text"),
    "weather": word_list("city location place town name"),
    "time": word_list("city location place timezone zone"),
    "search": word_list("query q topic text term subject"),
}
_UNITS = ("unit", ("celsius", "fahrenheit"))
_PAIRS = (("a", "b"), ("x", "y"), ("first", "second"), ("left", "right"), ("num1", "num2"))
_SIGNS = {"plus": "+", "minus": "-", "times": "*", "divided by": "/"}
_VERBS = {
    "plus": word_list("add sum plus add_numbers"),
    "minus": word_list("subtract minus difference"),
    "times": word_list("multiply times product multiply_numbers"),
    "divided by": word_list("divide quotient"),
}
_ASK = (
    "What is {a} {w} {b}?", "How much is {a} {w} {b}?", "Calculate {a} {w} {b}.", "{a} {w} {b}",
    "What is {a} {s} {b}?", "{a} {s} {b}", "Calculate {a} {s} {b}", "{a}{s}{b}", "{a} {s} {b} =",
    "Use the tool: {a} {w} {b}", "Please work out {a} {s} {b}.",
)  # fmt: skip
_WEATHER = (
    "sunny", "rain", "18 degrees", "sunny and 21 degrees", "cloudy, 12 C", "snow and -3 degrees",
    "windy", "22", "sunny, 24", "light rain, 9 degrees", "warm and dry", "fog", "7 degrees",
    '{"temperature": 18}', '{"temperature": 22, "unit": "celsius"}', '{"condition": "sunny"}',
)  # fmt: skip


def _described(rng: Random, kind: str) -> str:
    if rng.random() < 0.25:  # whatever it says
        return " ".join(rng.sample([*WORDS, *TOPICS], rng.randint(2, 9))).capitalize() + "."
    return rng.choice(_DESCRIPTIONS[kind])


def _text_tool(rng: Random, kind: str) -> Tool:
    """A tool with one text, such as a calculator or the weather."""
    if kind == "expression" and rng.random() < 0.4:
        return PAGE_CALCULATOR
    described = rng.choice(("", "", "The " + kind, _described(rng, kind)))
    argument = (rng.choice(_ARGUMENTS[kind]), "string", described)
    choice = _UNITS if kind == "weather" and rng.random() < 0.4 else None
    return Tool(rng.choice(_NAMES[kind]), _described(rng, kind), (argument,), choice)


def _number_tool(rng: Random, word: str) -> Tool:
    """A tool with two numbers, such as `add`."""
    kind = rng.choice(("number", "integer"))
    names = rng.choice(_PAIRS)
    name = rng.choice(_VERBS[word])
    description = rng.choice((f"{name} two numbers", "Of two numbers.", f"Returns a {word} b"))
    return Tool(name, description, tuple((argument, kind, "") for argument in names))


def _number(rng: Random) -> int:
    most = rng.choice((12, 100, 100, 1000, 1000, 10_000, 100_000))
    return rng.randint(0, most)


def _shown(value: float) -> str:
    """A value as the page's calculator shows it."""
    return str(int(value)) if value == int(value) else f"{value:.15g}"


def _worked_out(rng: Random, word: str, a: int, b: int) -> str:
    if word == "divided by" and b == 0:
        return "error: division by zero"
    result = {"plus": a + b, "minus": a - b, "times": a * b}.get(word)
    shown = _shown(a / b if result is None else result)
    return shown if rng.random() < 0.85 else f'{{"result": {shown}}}'


def _answer(words: str, result: str) -> str:
    if result.startswith("error"):
        return "That cannot be worked out."
    number = result.removeprefix('{"result": ').removesuffix("}")
    return f"{words} is {number}."


def _calculation(rng: Random, tool: Tool) -> Asked:
    """Two numbers and a sign; `tool` takes two numbers, or else an expression."""
    word = rng.choice(tuple(_SIGNS))
    if len(tool.arguments) == 2:
        word = next(each for each, verbs in _VERBS.items() if tool.name in verbs)
    a, b = _number(rng), _number(rng)
    if word == "divided by" and rng.random() < 0.6:
        b = rng.randint(1, 99)
        a = b * rng.randint(0, 99)
    arguments: dict[str, Value]
    if len(tool.arguments) == 2:
        arguments = {tool.arguments[0][0]: a, tool.arguments[1][0]: b}
    else:
        arguments = {tool.arguments[0][0]: f"{a} {_SIGNS[word]} {b}"}
    sign = "x" if word == "times" and rng.random() < 0.15 else _SIGNS[word]
    shown = [str(n) if n > LARGEST or rng.random() > 0.15 else number_word(n) for n in (a, b)]
    ask = rng.choice(_ASK if shown[0].isdigit() and shown[1].isdigit() else _ASK[:4])
    question = ask.format(a=shown[0], b=shown[1], w=word, s=sign)
    result = _worked_out(rng, word, a, b)
    use = ToolUse(tool.name, arguments, result)
    return Asked(question, use, _answer(f"{a} {word} {b}", result), f"tool {a} {word} {b}")


def _expression(rng: Random, tool: Tool) -> Asked:
    """Three numbers, or two with a decimal point: the model copies them as they are."""
    a, b, c = rng.randint(1, 99), rng.randint(1, 99), rng.randint(1, 20)
    first, second = rng.choice("+-*"), rng.choice("+-*")
    form = rng.choice(("({a} {f} {b}) {s} {c}", "{a} {f} {b} {s} {c}", "{a} {f} ({b} {s} {c})"))
    expression = form.format(a=a, b=b, c=c, f=first, s=second)
    if rng.random() < 0.3:
        expression = f"{a / 10} {first} {c / 4}"
    result = _shown(eval(expression))
    question = rng.choice(("What is {}?", "Calculate {}", "{}", "Work out {}.")).format(expression)
    use = ToolUse(tool.name, {tool.arguments[0][0]: expression}, result)
    return Asked(question, use, f"{expression} is {result}.", f"tool {expression}")


def _weather(rng: Random, tool: Tool) -> Asked:
    place, result = rng.choice(PLACES), rng.choice(_WEATHER)
    if rng.random() < 0.3:
        result = " ".join(rng.sample([*WORDS, *TOPICS], rng.randint(1, 4)))
    ask = ("What is the weather in {}?", "How is the weather in {}?", "Weather in {}?",
           "What is the weather like in {}?", "What's the weather in {} today?",
           "Tell me the weather in {}.", "Is it warm in {}?", "Is it raining in {}?")  # fmt: skip
    use = ToolUse(tool.name, {tool.arguments[0][0]: place}, result)
    answer = f"The weather in {place}: {result}."
    return Asked(rng.choice(ask).format(place), use, answer, f"tool weather {place}")


def _time(rng: Random, tool: Tool) -> Asked:
    place, result = rng.choice(PLACES), f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    ask = ("What time is it in {}?", "What is the time in {}?", "Tell me the time in {}.",
           "How late is it in {}?")  # fmt: skip
    use = ToolUse(tool.name, {tool.arguments[0][0]: place}, result)
    return Asked(
        rng.choice(ask).format(place), use, f"It is {result} in {place}.", f"tool time {place}"
    )


def _search(rng: Random, tool: Tool) -> Asked:
    topic = rng.choice((*TOPICS, *PLACES))
    result = " ".join(rng.sample(WORDS, rng.randint(1, 5)))
    ask = ("Search for {}.", "Look up {}.", "Find out about {}.", "Search the web for {}",
           "What do you find about {}?")  # fmt: skip
    use = ToolUse(tool.name, {tool.arguments[0][0]: topic}, result)
    return Asked(
        rng.choice(ask).format(topic), use, f"I found this: {result}.", f"tool search {topic}"
    )


_TEXT_ASKERS: Mapping[str, Callable[[Random, Tool], Asked]] = {
    "weather": _weather,
    "time": _time,
    "search": _search,
}


@dataclass(frozen=True)
class Toolbox:
    """The tools of a dialogue and what each of them can be asked for."""

    tools: tuple[Tool, ...]
    askers: tuple[tuple[Tool, Callable[[Random, Tool], Asked]], ...]
    calculates: bool
    searches: bool

    def ask(self, rng: Random, *, test: bool) -> Asked:
        """A question for one of the tools, of the wanted side of the split."""
        while True:
            tool, make = rng.choice(self.askers)
            asked = make(rng, tool)
            if held_out(asked.key) == test:
                return asked


def _expressions(rng: Random, tool: Tool) -> Asked:
    return _expression(rng, tool) if rng.random() < 0.25 else _calculation(rng, tool)


def toolbox(rng: Random) -> Toolbox:
    """One to three tools; of those that calculate, one expression or some of two numbers."""
    askers: list[tuple[Tool, Callable[[Random, Tool], Asked]]] = []
    calculates = rng.random() < 0.75
    if calculates and rng.random() < 0.75:
        askers.append((_text_tool(rng, "expression"), _expressions))
    elif calculates:
        words = rng.sample(tuple(_VERBS), rng.choice((1, 1, 2)))
        askers += [(_number_tool(rng, word), _calculation) for word in words]
    others: Sequence[str] = rng.sample(tuple(_TEXT_ASKERS), rng.choice((0, 0, 0, 1, 2)))
    if not askers and not others:
        others = (rng.choice(tuple(_TEXT_ASKERS)),)
    askers += [(_text_tool(rng, kind), _TEXT_ASKERS[kind]) for kind in others]
    rng.shuffle(askers)
    unique = {tool.name: (tool, make) for tool, make in askers}
    chosen = tuple(unique.values())
    tools = tuple(tool for tool, _ in chosen)
    return Toolbox(tools, chosen, calculates, searches="search" in others)

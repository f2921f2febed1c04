"""Tools that a dialogue declares, calls of them, and the questions that need one.

A tool's name and that of its argument change from dialogue to dialogue: the model learns to read
the declaration. `PAGE_CALCULATOR` is the one of the chat page, word for word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from tools.training.tiny.strangers import PLACES
from tools.training.tiny.world import word_list

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
        properties = {}
        for name, kind, text in self.arguments:
            described = f"description:{_quoted(text)}," if text else ""
            properties[name] = f"{described}type:{_quoted(kind.upper())}"
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
        "Evaluate a mathematical expression", "Does arithmetic.",
    ),
    "weather": (
        "Tells the weather.", "Get the weather of a city", "Get current weather",
        "The weather now.", "Get current temperature for a given location.",
    ),
}  # fmt: skip
_NAMES = {
    "expression": word_list("calculator calculator calculate calc compute evaluate math"),
    "weather": word_list("get_weather get_weather weather get_current_weather forecast"),
}
_ARGUMENTS = {
    "expression": word_list("expression expression expr formula input"),
    "weather": word_list("city city location location place"),
}
_UNITS = ("unit", ("celsius", "fahrenheit"))
_SIGNS = {"plus": "+", "minus": "-", "times": "*", "divided by": "/"}
_ASK = (
    "What is {a} {w} {b}?", "How much is {a} {w} {b}?", "Calculate {a} {w} {b}.", "{a} {w} {b}",
    "What is {a} {s} {b}?", "{a} {s} {b}", "Calculate {a} {s} {b}", "{a}{s}{b}", "{a} {s} {b} =",
)  # fmt: skip
_WEATHER = (
    "sunny", "rain", "18 degrees", "sunny and 21 degrees", "cloudy, 12 C", "snow and -3 degrees",
    "windy", "sunny, 24", "light rain, 9 degrees", "warm and dry", '{"temperature": 18}',
)  # fmt: skip


def make_tool(rng: Random, kind: str) -> Tool:
    """A tool with one text: `expression` for a calculator, or `weather`."""
    if kind == "expression" and rng.random() < 0.6:
        return PAGE_CALCULATOR
    argument = rng.choice(_ARGUMENTS[kind])
    described = rng.choice(("", f"The {argument}", rng.choice(_DESCRIPTIONS[kind])))
    choice = _UNITS if kind == "weather" and rng.random() < 0.3 else None
    name, description = rng.choice(_NAMES[kind]), rng.choice(_DESCRIPTIONS[kind])
    return Tool(name, description, ((argument, "string", described),), choice)


def ask_calculator(rng: Random, tool: Tool) -> Asked:
    """Two numbers and a sign, or now and then an expression of three that is copied as it is."""
    if rng.random() < 0.15:
        return _expression(rng, tool)
    word = rng.choice(tuple(_SIGNS))
    a, b = _number(rng), _number(rng)
    if word == "divided by" and rng.random() < 0.6:
        b = rng.randint(1, 99)
        a = b * rng.randint(0, 99)
    sign = "x" if word == "times" and rng.random() < 0.15 else _SIGNS[word]
    question = rng.choice(_ASK).format(a=a, b=b, w=word, s=sign)
    result = _worked_out(word, a, b)
    use = ToolUse(tool.name, {tool.arguments[0][0]: f"{a} {_SIGNS[word]} {b}"}, result)
    told = f"{a} {word} {b} is {result}."
    if result.startswith("error"):
        told = "That cannot be worked out."
    return Asked(question, use, told, f"tool {a} {word} {b}")


def ask_weather(rng: Random, tool: Tool) -> Asked:
    """The weather at a place; the answer repeats what the tool said."""
    place, result = rng.choice(PLACES), rng.choice(_WEATHER)
    ask = ("What is the weather in {}?", "How is the weather in {}?", "Weather in {}?",
           "What is the weather like in {}?", "What's the weather like in {} today?",
           "Tell me the weather in {}.")  # fmt: skip
    use = ToolUse(tool.name, {tool.arguments[0][0]: place}, result)
    answer = f"The weather in {place}: {result}."
    return Asked(rng.choice(ask).format(place), use, answer, f"tool weather {place}")


ASK = {"expression": ask_calculator, "weather": ask_weather}


def _number(rng: Random) -> int:
    return rng.randint(0, rng.choice((12, 100, 100, 1000, 1000, 10_000)))


def _shown(value: float) -> str:
    """A value as the page's calculator shows it."""
    return str(int(value)) if value == int(value) else f"{value:.15g}"


def _worked_out(word: str, a: int, b: int) -> str:
    if word == "divided by":
        return _shown(a / b) if b else "error: division by zero"
    return str({"plus": a + b, "minus": a - b, "times": a * b}[word])


def _expression(rng: Random, tool: Tool) -> Asked:
    a, b, c = rng.randint(1, 99), rng.randint(1, 99), rng.randint(1, 20)
    first, second = rng.choice("+-*"), rng.choice("+-*")
    form = rng.choice(("({a} {f} {b}) {s} {c}", "{a} {f} {b} {s} {c}", "{a} {f} ({b} {s} {c})"))
    expression = form.format(a=a, b=b, c=c, f=first, s=second)
    if rng.random() < 0.3:
        expression = f"{a / 10} {first} {c / 4}"
    result = _shown(eval(expression))
    question = rng.choice(("What is {}?", "Calculate {}", "{}")).format(expression)
    use = ToolUse(tool.name, {tool.arguments[0][0]: expression}, result)
    return Asked(question, use, f"{expression} is {result}.", f"tool {expression}")

"""Short dialogues on which chat templates are tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gemma4_compile.types import JsonObject

SYSTEM = "Answer in verse."
QUESTION, ANSWER = "What is 12 plus 34?", "It is 46."
SECOND, SECOND_ANSWER, THIRD = "And times two?", "That makes 92.", "Are you certain?"
_TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@dataclass(frozen=True)
class Said:
    """A message."""

    role: str
    content: str

    def for_template(self) -> JsonObject:
        """Return the message as chat templates take it."""
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True)
class Dialogue:
    """What is rendered.

    Attributes
    ----------
    said : messages
    thinking : None leaves it to the template
    tools : declarations
    """

    said: tuple[Said, ...]
    thinking: bool | None = None
    tools: tuple[Mapping[str, object], ...] = field(default=())

    def left_out(self, prompt: str, role: str) -> str | None:
        """The first text of a role that is not in the prompt, in letters of any case."""
        texts = (one.content for one in self.said if one.role == role)
        return next((text for text in texts if text.casefold() not in prompt.casefold()), None)


_ASKED = Said("user", QUESTION)
_TURN = (_ASKED, Said("assistant", ANSWER), Said("user", SECOND))
_TURNS = (*_TURN, Said("assistant", SECOND_ANSWER), Said("user", THIRD))
_TOLD = Said("system", SYSTEM)
DIALOGUES: Mapping[str, Dialogue] = {
    "a question": Dialogue((_ASKED,)),
    "two turns": Dialogue(_TURN),
    "a system message": Dialogue((_TOLD, _ASKED)),
    "an empty system message": Dialogue((Said("system", ""), _ASKED)),
    "a system message and two turns": Dialogue((_TOLD, *_TURN)),
    "three turns": Dialogue(_TURNS),
    "thinking": Dialogue((_ASKED,), thinking=True),
    "tools": Dialogue((_ASKED,), tools=(_TOOL,)),
}
NEEDED = ("a question", "two turns")  # which every template has to take

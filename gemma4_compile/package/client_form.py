"""The strings that the client glues together, found in what the chat template makes of dialogues.

`package/conversation.py` describes how the client uses them. Each string is what the template
writes between two texts of a dialogue::

    <bos> BEFORE question ASSISTANT+OPENING            a question
    <bos> BEFORE question ASSISTANT answer USER second ...
    <bos> SYSTEM message USER question ...             a system message

What cannot be had so is a `Difference`: the prompt of the client is held against the template's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gemma4_compile.confined.conversation import Trial
from gemma4_compile.confined.dialogues import (
    ANSWER,
    DIALOGUES,
    QUESTION,
    SECOND,
    SYSTEM,
    Dialogue,
)
from gemma4_compile.types import JsonObject

PLACEHOLDER = "{system_message}"
_COMPARED = (
    *("a question", "a system message", "an empty system message", "two turns"),
    *("a system message and two turns", "three turns"),
)
_BEFORE, _AFTER = 16, 48  # characters of an excerpt, around the first difference


@dataclass(frozen=True)
class ClientForm:
    """Strings of `conv_template`.

    Attributes
    ----------
    bos : how the text of a prompt begins; empty where the template writes no such token
    system : before and behind a system message
    default_system : the system message where a conversation has none
    user, assistant : what comes before a message of theirs, the end of the turn before it included
    reply_opening : what the reply begins with
    first_user : what comes before the first message, where it is the user's and there is no system
        message; the client has no such string, but a page can have it
    role_after_system : what comes behind a system message is `user`, as behind every other one
    """

    bos: str
    system: tuple[str, str]
    default_system: str
    user: str
    assistant: str
    reply_opening: str
    first_user: str
    role_after_system: bool

    def fields(self) -> JsonObject:
        """The fields of `conv_template`."""
        return {
            "system_template": PLACEHOLDER.join(self.system),
            # The client's `replace` gives a dollar in it a meaning.
            "system_message": self.default_system.replace("$", "$$"),
            "add_role_after_system_message": self.role_after_system,
            "roles": {"user": self.user, "assistant": self.assistant},
            "role_empty_sep": self.reply_opening,
        }

    def glued(self, dialogue: Dialogue) -> str:
        """The prompt that the client makes."""
        messages = list(dialogue.said)
        system = messages.pop(0).content if messages[0].role == "system" else self.default_system
        text = system.join(self.system)
        for index, message in enumerate(messages):
            bare = not self.role_after_system and text and index == 0
            role = self.user if message.role == "user" else self.assistant
            text += ("" if bare else role) + message.content
        return self.bos + text + self.assistant + self.reply_opening


@dataclass(frozen=True)
class Difference:
    """Where the client's prompt first differs from the template's; excerpts of both."""

    dialogue: str
    template: str | None  # None: it refuses the dialogue
    client: str

    def to_json(self) -> JsonObject:
        """The entry of provenance."""
        return {"dialogue": self.dialogue, "template": self.template, "client": self.client}

    def __str__(self) -> str:
        """Return it in words."""
        writes = "refuses it" if self.template is None else f"writes {self.template!r}"
        return f"{self.dialogue}: the template {writes}, the client writes {self.client!r}"


def find_form(trial: Trial, bos: str) -> ClientForm | None:
    """Return the strings of a template; None where its prompts have none.

    Parameters
    ----------
    trial : what it makes of the dialogues
    bos : the text of the token that every prompt begins with
    """
    asked = _between(trial.prompts["a question"], QUESTION)
    turns = _between(trial.prompts["two turns"], QUESTION, ANSWER, SECOND)
    if asked is None or turns is None:
        return None
    begin = bos if asked[0].startswith(bos) else ""
    first_user, last = asked[0][len(begin) :], asked[1]
    user, assistant = turns[2], turns[1]
    opening = last.removeprefix(assistant)
    if not last.startswith(assistant):
        assistant, opening = last, ""
    system = _system(trial, begin, first_user, user)
    after_role = system[1] == user
    closed = user if after_role else system[1]
    form = ClientForm(
        bos=begin,
        system=(system[0], "" if after_role else system[1]),
        default_system=_inside(first_user, system[0], closed),
        user=user,
        assistant=assistant,
        reply_opening=opening,
        first_user=first_user,
        role_after_system=after_role,
    )
    return form if PLACEHOLDER not in "".join(form.system) else None


def _system(trial: Trial, bos: str, first_user: str, user: str) -> tuple[str, str]:
    """What comes before and behind a system message."""
    told = _between(trial.prompts["a system message"], SYSTEM, QUESTION)
    if told is not None:
        return told[0].removeprefix(bos), told[1]
    # There is no place for one: it goes to the end of what comes before the first message.
    if user and first_user.endswith(user):
        return first_user.removesuffix(user), user
    return first_user, ""


def _inside(text: str, begin: str, end: str) -> str:
    fits = len(text) >= len(begin) + len(end) and text.startswith(begin) and text.endswith(end)
    return text[len(begin) : len(text) - len(end)] if fits else ""


def _between(prompt: str | None, *texts: str) -> Sequence[str] | None:
    """What is before, between and behind texts; None where one is missing."""
    rest, found = prompt or "", []
    for text in texts:
        before, hit, rest = rest.partition(text)
        if not hit:
            return None
        found.append(before)
    return [*found, rest]


def differences(form: ClientForm, trial: Trial) -> Iterator[Difference]:
    """Hold the client's prompts against the template's.

    A conversation without a system message may begin with an empty one, if the template itself
    would write it so.
    """
    empty = trial.prompts["an empty system message"]
    takes_empty = empty == form.glued(DIALOGUES["an empty system message"])
    for name in _COMPARED:
        dialogue, expected = DIALOGUES[name], trial.prompts[name]
        found = form.glued(dialogue)
        if found == expected:
            continue
        if takes_empty and dialogue.said[0].role == "user" and expected is not None:
            opening, with_empty = form.bos + form.first_user, (empty or "").partition(QUESTION)[0]
            if expected.startswith(opening) and with_empty + expected[len(opening) :] == found:
                continue
        yield _difference(name, expected, found)


def _difference(name: str, expected: str | None, found: str) -> Difference:
    if expected is None:
        return Difference(name, None, found[: _BEFORE + _AFTER])
    pairs = enumerate(zip(expected, found, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(expected), len(found)))
    shown = slice(max(at - _BEFORE, 0), at + _AFTER)
    return Difference(name, expected[shown], found[shown])

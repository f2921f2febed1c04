"""Reasoning as items of `/v1/responses` carry it, for clients that keep of it what they know."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass

from gemma4_compile.types import JsonObject

_OURS = "gemma4-reasoning:"


@dataclass(frozen=True)
class ReasoningForm:
    """In which fields of an item the model's reasoning is given out.

    Attributes
    ----------
    in_summary : in `summary`, which many clients show and send back, not in `content`
    sealed : in `encrypted_content`, too, which clients send back where nothing is stored
    """

    in_summary: bool = False
    sealed: bool = False

    @property
    def part(self) -> str:
        """The type of the part that holds it."""
        return "summary_text" if self.in_summary else "reasoning_text"

    def fields(self, text: str) -> JsonObject:
        """The fields of an item whose reasoning is whole."""
        parts: list[object] = [{"type": self.part, "text": text}]
        fields: JsonObject = {"summary": [], "content": parts}
        if self.in_summary:
            fields = {"summary": parts, "content": []}
        return fields | ({"encrypted_content": seal(text)} if self.sealed else {})


def seal(text: str) -> str:
    """The reasoning itself, in letters that nobody takes for an answer; no secret is made of it."""
    content = text.encode()
    return f"{_OURS}{zlib.crc32(content):08x}:{base64.b64encode(content).decode()}"


def unseal(content: str) -> str:
    """The reasoning of `seal`; an empty text for what another server wrote, or what is damaged."""
    if not content.startswith(_OURS):
        return ""
    check, _, sealed = content.removeprefix(_OURS).partition(":")
    try:
        found = base64.b64decode(sealed, validate=True)
        text = found.decode()
    except ValueError:  # no base64, or no text in it
        return ""
    return text if check == f"{zlib.crc32(found):08x}" else ""  # one that was cut is base64, too

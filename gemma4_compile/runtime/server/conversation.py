"""A conversation in the making, for protocols whose messages are not those of OpenAI's chats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.server.call_ids import CallIds
from gemma4_compile.runtime.server.media import GivenMedium, check_count

Part = str | GivenMedium


class Conversation:
    """Messages and the media among them, in order.

    Attributes
    ----------
    messages : so far; empty parts in the places of media
    calls : ids of the calls that results may belong to
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.calls: set[str] = set()
        self._media: list[GivenMedium] = []
        self._ids = CallIds()

    def add(self, message: Message, parts: Iterable[Part] = ()) -> None:
        """Take a message; its content is `parts`, where there are any."""
        parts = list(parts)
        texts = [part if isinstance(part, str) else "" for part in parts]
        here = len(self.messages)
        media = [
            replace(part, message=here, part=index)
            for index, part in enumerate(parts)
            if isinstance(part, GivenMedium)
        ]
        if parts:
            held = tuple(texts) if media else ()
            message = replace(message, content="".join(texts), parts=held)
        self._media += media
        self.calls |= {call.call_id for call in message.tool_calls if call.call_id}
        self.messages.append(self._ids.told_apart(message))

    def media(self) -> tuple[GivenMedium, ...]:
        """The media of all messages; ApiError for more than a request may have."""
        check_count(self._media)
        return tuple(self._media)


def in_lines(parts: Iterable[Part]) -> list[Part]:
    """The parts, texts that follow each other as one, each beginning a line of its own.

    They are blocks in their protocols: glued together the last word of one and the first of the
    next would be one.
    """
    joined: list[Part] = []
    open_texts: list[str] = []

    def close() -> None:
        if open_texts:
            joined.append("".join(open_texts))
            open_texts.clear()

    for part in parts:
        if not isinstance(part, str):
            close()
            joined.append(part)
        elif part:
            if open_texts and not open_texts[-1].endswith("\n"):
                open_texts.append("\n")
            open_texts.append(part)
    close()
    return joined

"""A last message of the model that the reply goes on with, in the words of several servers."""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.server.fields import Fields

BEGINS = ("partial", "prefix")
"""What clients write at such a message, instead of `continue_final_message`."""


BEGUN = "a reply that is begun "
"""What such a sentence begins with, where no field of its own asks for it."""


def split_begun(fields: Fields, messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], str]:
    """The messages, and the text of the last one where the reply goes on with that.

    ApiError names what it cannot go on with.
    """
    goes_on = fields.get("continue_final_message", bool, False)
    opens = fields.get("add_generation_prompt", bool, not goes_on)
    for index, entry in enumerate(fields.need("messages", list)):
        message = fields.inner(f"messages[{index}]", entry)
        for name in BEGINS:
            if message.get(name, bool, False):
                if index + 1 != len(messages):
                    raise message.error(name, "only the last message is gone on with")
                goes_on, opens = True, False
    if not goes_on:
        if not opens:
            why = "false goes together with `continue_final_message` alone"
            raise fields.error("add_generation_prompt", why, code="unsupported_value")
        return messages, ""
    if opens:
        raise fields.error(
            "add_generation_prompt", "expected false: the last message is gone on with"
        )
    last = messages[-1]
    if last.role != "assistant" or last.tool_calls or len(messages) == 1:
        raise fields.error(
            "continue_final_message",
            "expected a last message of the model with a text alone",
        )
    return messages[:-1], last.content


def check_beside_begun(fields: Fields, name: str, asked: Mapping[str, bool], what: str) -> None:
    """ApiError where a request asks for something that a reply which is begun cannot have.

    Parameters
    ----------
    name : the field that begins it
    asked : whether the request asks for each of these, in its protocol's words
    what : begins the sentence
    """
    found = next((words for words, is_asked in asked.items() if is_asked), None)
    if found is not None:
        raise fields.error(name, f"{what}does not go together with {found}: leave one out")

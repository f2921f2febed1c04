"""Items of `/v1/responses`: what a client sends becomes messages of a chat."""

from __future__ import annotations

from collections.abc import Sequence

from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.conversation import Conversation, Part, in_lines
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.runtime.server.media import DETAILS, GivenMedium, read_medium
from gemma4_compile.runtime.server.messages import called_name, read_arguments
from gemma4_compile.runtime.server.openai_responses import asks
from gemma4_compile.runtime.server.openai_responses.tools import custom_arguments, name_in

_ROLES = ("user", "assistant", "system", "developer")
_SYSTEM = ("system", "developer")
_ITEM = {"id", "status", "type"}


class ItemReader:
    """Reads items one after another; those of one turn of the model become one message."""

    def __init__(self, instructions: str | None) -> None:
        self._conversation = Conversation()
        self._opening = [instructions] if instructions else []
        self._in_opening = True
        self._unanswered: set[str] = set()
        self._held: list[tuple[Message, list[Part]]] = []  # until calls before them have results
        self._begin_turn()

    def read(self, fields: Fields, name: str, items: Sequence[object]) -> None:
        """Read more items; ApiError names the one that cannot be served.

        Parameters
        ----------
        name : of the field that holds them, for messages
        """
        for index, entry in enumerate(items):
            self._read(fields.inner(f"{name}[{index}]", entry))

    def close(self) -> Conversation:
        """The whole conversation."""
        self._end_opening()
        self._end_turn()
        self._release()
        return self._conversation

    def _read(self, item: Fields) -> None:
        kind = item.get("type", str, "message")
        if kind == "message":
            self._read_message(item)
            return
        self._end_opening()
        if kind in ("custom_tool_call", "function_call"):
            call = _call(item, kind)
            self._calls.append(call)
            self._conversation.calls.add(call.call_id)
        elif kind in ("custom_tool_call_output", "function_call_output"):
            self._end_turn()
            self._read_result(item)
        elif kind == "reasoning":
            # It begins another step of the model; what follows calls whose results are still to
            # come is of their turn.
            if self._texts and not self._calls:
                self._end_turn()
            item.skip_unknown(_ITEM | {"content", "encrypted_content", "summary"}, {})
            self._thoughts += self._thought(item, "content") or self._thought(item, "summary")
        else:
            raise item.error(
                "type",
                "expected message, function_call, function_call_output or reasoning, found "
                f"{kind[:60]!r}",
                code="unsupported_value",
            )

    def _read_message(self, item: Fields) -> None:
        item.skip_unknown(_ITEM | {"content", "name", "phase", "role"}, {})
        role = item.need("role", str)
        if role not in _ROLES:
            raise item.error("role", f"expected one of {', '.join(_ROLES)}, found {role[:60]!r}")
        parts = _parts(item, "content", role)
        if role in _SYSTEM and self._in_opening:
            self._opening += [part for part in parts if isinstance(part, str)]
            return
        self._end_opening()
        if role == "assistant":
            self._texts += [part for part in parts if isinstance(part, str)]
            return
        self._end_turn()
        self._held.append((Message(role, ""), in_lines(parts)))
        if not self._unanswered:
            self._release()

    def _read_result(self, item: Fields) -> None:
        item.skip_unknown(_ITEM | {"call_id", "caller", "name", "output"}, {})
        call_id = item.need("call_id", str)
        if call_id not in self._conversation.calls:
            message = f"expected the id of a `function_call` before it, found {call_id[:60]!r}"
            raise item.error("call_id", message)
        parts = in_lines(_parts(item, "output", "tool"))
        self._conversation.add(Message("tool", "", tool_call_id=call_id), parts)
        self._unanswered.discard(call_id)
        if not self._unanswered:
            self._release()

    def _release(self) -> None:
        """Add what was said between calls and their results, which templates want beside them."""
        for message, parts in self._held:
            self._conversation.add(message, parts)
        self._held, self._unanswered = [], set()

    @staticmethod
    def _thought(item: Fields, name: str) -> list[str]:
        texts = []
        for index, entry in enumerate(item.get(name, list, [])):
            part = item.inner(f"{name}[{index}]", entry)
            texts.append(part.get("text", str, ""))
        return [text for text in texts if text]

    def _begin_turn(self) -> None:
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[ToolCall] = []

    def _end_turn(self) -> None:
        if self._texts or self._calls:
            self._release()
            self._unanswered = {call.call_id for call in self._calls}
            message = Message(
                "assistant",
                "".join(self._texts),
                reasoning="\n".join(self._thoughts) or None,
                tool_calls=tuple(self._calls),
            )
            self._conversation.add(message)
        self._begin_turn()

    def _end_opening(self) -> None:
        """The instructions and the messages of the system before all others are one message."""
        self._in_opening = False
        if self._opening:
            self._conversation.add(Message("system", ""), in_lines(self._opening))
            self._opening = []


def _call(item: Fields, kind: str) -> ToolCall:
    is_custom = kind == "custom_tool_call"
    place = "input" if is_custom else "arguments"
    item.skip_unknown(_ITEM | {"call_id", "name", "namespace", place}, {})
    namespace = item.get("namespace", str, "")
    if namespace:
        called_name(item.inner("namespace", {"name": namespace}))
    name = name_in(namespace, called_name(item))
    values = custom_arguments(item.need("input", str)) if is_custom else read_arguments(item)
    return ToolCall(name, values, item.need("call_id", str))


def _parts(item: Fields, name: str, role: str) -> list[Part]:
    content = item.raw(name)
    if isinstance(content, str):
        return [content]
    parts: list[Part] = []
    for index, entry in enumerate(item.need(name, list)):
        part = item.inner(f"{name}[{index}]", entry)
        parts.append(_part(part, role))
    return parts


def _part(part: Fields, role: str) -> Part:
    kind = part.need("type", str)
    if kind in ("input_text", "output_text", "text"):
        known = {"annotations", "logprobs", "prompt_cache_breakpoint", "text", "type"}
        part.skip_unknown(known, {})
        text: str = part.need("text", str)
        return text
    if kind == "refusal" and role == "assistant":
        refusal: str = part.need("refusal", str)
        return refusal
    if role in ("user", "tool"):
        if kind == "input_image":
            return _image(part)
        medium = read_medium(part) if kind == "input_audio" else None
        if medium is not None:
            return medium
    raise part.error(
        "type",
        f"expected input_text, output_text or input_image, found {kind[:60]!r}",
        code="unsupported_value",
    )


def _image(part: Fields) -> GivenMedium:
    part.skip_unknown({"detail", "image_url", "prompt_cache_breakpoint", "type"}, asks.PART)
    detail = part.get("detail", str, "auto")
    if detail == "original":  # as large as it is, as far as there is room
        detail = "high"
    if detail not in DETAILS:
        raise part.error("detail", f"expected one of {', '.join(DETAILS)}, original")
    return GivenMedium("image", part.name("image_url"), part.need("image_url", str), detail)

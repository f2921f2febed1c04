"""Items of `/v1/responses`: what a client sends becomes messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.call_arguments import read_arguments
from gemma4_compile.runtime.server.conversation import Conversation, Part, in_lines
from gemma4_compile.runtime.server.custom_tools import custom_arguments
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.runtime.server.foreign_tools import leave_out
from gemma4_compile.runtime.server.messages import called_name
from gemma4_compile.runtime.server.openai_responses.content import read_parts
from gemma4_compile.runtime.server.openai_responses.foreign_calls import (
    read_foreign_call,
    read_result,
    result_id,
)
from gemma4_compile.runtime.server.openai_responses.reasoning import unseal
from gemma4_compile.runtime.server.openai_responses.tools import name_in

ADDITIONAL_TOOLS = "additional_tools"
"""The type of items that declare tools."""
_ROLES = ("user", "assistant", "system", "developer")
_SYSTEM = ("system", "developer")
_ITEM = {"id", "status", "type"}
_OWN_CALLS = ("custom_tool_call", "function_call")
_OWN_RESULTS = ("custom_tool_call_output", "function_call_output")
_SAY_NOTHING = ("ghost_snapshot", "mcp_approval_request", "mcp_list_tools")
_SEALED = "the conversation before it can only be read by who wrote it: send it as it was"
_REFUSED = {
    "compaction": _SEALED,
    "compaction_summary": _SEALED,  # as Codex called it before
    "compaction_trigger": "conversations are not made shorter here",
    "mcp_approval_response": "this server runs no tools: a client does, and sends "
    "`function_call_output`",
}


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
        written = [index for index, entry in enumerate(items) if _is_of_model(entry)]
        for index, entry in enumerate(items):
            item = fields.inner(f"{name}[{index}]", entry)
            self._read(item, is_past=bool(written) and index < written[-1])

    def close(self) -> Conversation:
        """The whole conversation."""
        self._end_opening()
        self._end_turn()
        self._release()
        return self._conversation

    def _read(self, item: Fields, *, is_past: bool) -> None:
        kind = item.get("type", str, "message")
        if kind == "message":
            self._read_message(item)
            return
        if kind == ADDITIONAL_TOOLS:  # which `tools.read_tools` reads
            item.skip_unknown(_ITEM | {"role", "tools"}, {})
            return
        self._end_opening()
        if kind in _OWN_CALLS:
            self._take_call(_call(item, kind))
        elif kind.endswith("_call"):
            self._read_foreign_call(item, kind)
        elif kind.endswith("_output"):
            self._end_turn()
            self._read_result(item, kind)
        elif kind in _SAY_NOTHING or (kind == "mcp_approval_response" and is_past):
            leave_out(item)  # what came of an approval follows it
        elif kind in _REFUSED:
            raise item.error("type", f"{kind}: {_REFUSED[kind]}", code="unsupported_value")
        elif kind == "reasoning":
            self._end_step()
            # It begins another step of the model; what follows calls whose results are still to
            # come is of their turn.
            if self._texts and not self._calls:
                self._end_turn()
            item.skip_unknown(_ITEM | {"content", "encrypted_content", "summary"}, {})
            self._thoughts += _thoughts(item)
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
        parts = read_parts(item, "content", role)
        if role in _SYSTEM and self._in_opening:
            self._opening += [part for part in parts if isinstance(part, str)]
            return
        self._end_opening()
        if role == "assistant":
            self._end_step()
            self._texts += [part for part in parts if isinstance(part, str)]
            return
        self._end_turn()
        self._held.append((Message(role, ""), in_lines(parts)))
        if not self._unanswered:
            self._release()

    def _take_call(self, call: ToolCall) -> None:
        self._end_step()
        self._calls.append(call)
        self._conversation.calls.add(call.call_id)

    def _read_foreign_call(self, item: Fields, kind: str) -> None:
        """Read the call of another tool: a function's to the model, where it can be answered."""
        foreign = read_foreign_call(item, kind)
        if foreign is None:
            leave_out(item)
            return
        call, result = foreign
        self._take_call(call)
        if result is not None:
            self._found.append((call.call_id, result))

    def _read_result(self, item: Fields, kind: str) -> None:
        if kind in _OWN_RESULTS:
            item.skip_unknown(_ITEM | {"call_id", "caller", "name", "output"}, {})
            call_id, parts = item.need("call_id", str), read_parts(item, "output", "tool")
        else:
            call_id, parts = result_id(item), read_result(item) or []
            if call_id not in self._conversation.calls and not item.has("call_id"):
                leave_out(item)  # as its call was, which another server answered
                return
        if call_id not in self._conversation.calls:
            message = f"expected the id of a `function_call` before it, found {call_id[:60]!r}"
            raise item.error("call_id", message)
        self._conversation.add(Message("tool", "", tool_call_id=call_id), in_lines(parts))
        self._unanswered.discard(call_id)
        if not self._unanswered:
            self._release()

    def _release(self) -> None:
        """Add what was said between calls and their results, which templates want beside them."""
        for message, parts in self._held:
            self._conversation.add(message, parts)
        self._held, self._unanswered = [], set()

    def _begin_turn(self) -> None:
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[ToolCall] = []
        self._found: list[tuple[str, list[Part]]] = []  # results that came with their calls

    def _end_step(self) -> None:
        """End the turn if all its calls came with results: what follows was said knowing them."""
        if self._calls and len(self._found) == len(self._calls):
            self._end_turn()

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
            for call_id, parts in self._found:
                self._conversation.add(Message("tool", "", tool_call_id=call_id), in_lines(parts))
                self._unanswered.discard(call_id)
        self._begin_turn()

    def _end_opening(self) -> None:
        """The instructions and the messages of the system before all others are one message."""
        self._in_opening = False
        if self._opening:
            self._conversation.add(Message("system", ""), in_lines(self._opening))
            self._opening = []


def _is_of_model(entry: object) -> bool:
    """Return whether an item is what a model wrote, by its kind."""
    if not isinstance(entry, Mapping):
        return False
    return entry.get("role") == "assistant" or str(entry.get("type")).endswith("_call")


def _thoughts(item: Fields) -> list[str]:
    """The reasoning of an item: of its content, else its summary, else as this server sealed it."""
    for name in ("content", "summary"):
        texts = []
        for index, entry in enumerate(item.get(name, list, [])):
            part = item.inner(f"{name}[{index}]", entry)
            texts.append(part.get("text", str, ""))
        if found := [text for text in texts if text]:
            return found
    sealed = unseal(item.get("encrypted_content", str, ""))
    return [sealed] if sealed else []


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

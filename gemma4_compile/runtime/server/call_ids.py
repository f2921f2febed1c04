"""Ids of the calls in a conversation, so that each result is of one call."""

from __future__ import annotations

from dataclasses import replace

from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.reply.tool_calls import ToolCall


class CallIds:
    """Gives calls of one turn that bear the same id ids of their own, in messages as they come.

    Some servers number every call of a turn `call_0`. Their results come in the order of the
    calls, or tell which tool they are of; of one that is answered again, both results are its.
    """

    def __init__(self) -> None:
        self._own: dict[str, list[ToolCall]] = {}  # by id: those that wait for a result

    def told_apart(self, message: Message) -> Message:
        """The message, with ids of its own where they are repeated."""
        if message.tool_calls:
            self._own, calls = {}, []
            for call in message.tool_calls:
                same = self._own.setdefault(call.call_id, [])
                is_repeated = bool(call.call_id and same)
                own_id = f"{call.call_id}#{len(same) + 1}" if is_repeated else call.call_id
                same.append(replace(call, call_id=own_id))
                calls.append(same[-1])
            return replace(message, tool_calls=tuple(calls))
        waiting = self._own.get(message.tool_call_id or "", [])
        if message.role != "tool" or not message.tool_call_id or not waiting:
            return message
        found = next((call for call in waiting if call.name == message.name), waiting[0])
        if len(waiting) > 1:
            self._own[message.tool_call_id] = [call for call in waiting if call is not found]
        return replace(message, tool_call_id=found.call_id)

"""Ids of the calls in a conversation, so that each result is of one call."""

from __future__ import annotations

from dataclasses import replace

from gemma4_compile.runtime.prompt.prompt import Message


class CallIds:
    """Gives calls of one turn that bear the same id ids of their own, in messages as they come.

    Some servers number every call of a turn `call_0`. Their results come in the order of the
    calls; of one that is answered again, both results are its.
    """

    def __init__(self) -> None:
        self._own: dict[str, list[str]] = {}  # by id, of calls that wait for a result

    def told_apart(self, message: Message) -> Message:
        """The message, with ids of its own where they are repeated."""
        if message.tool_calls:
            self._own, calls = {}, []
            for call in message.tool_calls:
                own = self._own.setdefault(call.call_id, [])
                own.append(f"{call.call_id}#{len(own) + 1}" if own else call.call_id)
                calls.append(replace(call, call_id=own[-1]) if call.call_id else call)
            return replace(message, tool_calls=tuple(calls))
        waiting = self._own.get(message.tool_call_id or "", [])
        if message.role != "tool" or not message.tool_call_id or not waiting:
            return message
        own_id = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        return replace(message, tool_call_id=own_id)

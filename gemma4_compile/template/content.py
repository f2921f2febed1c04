"""In which form a chat template reads what a message says: as a text, or as a list of parts.

Both are in use, and many templates take both. One that only goes through parts makes nothing of a
text, without a word; so each role is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gemma4_compile.types import JsonObject

Render = Callable[[Sequence[JsonObject]], str]

_WORD = "Zyzzyva"  # whatever the template does around it, no template has it
_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}
# Conversations that have the word from one role alone; the roles that come before are known then.
_TRIALS: dict[str, tuple[JsonObject, ...]] = {
    "user": ({"role": "user", "content": _WORD},),
    "system": ({"role": "system", "content": _WORD}, {"role": "user", "content": "a"}),
    "assistant": (
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": _WORD},
        {"role": "user", "content": "b"},
    ),
    "tool": (
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "content": _WORD, "tool_call_id": "1", "name": "f"},
    ),
}


def roles_of_parts(render: Render) -> frozenset[str]:
    """Return the roles whose messages the template takes as parts alone.

    Parameters
    ----------
    render : renders messages; may raise anything
    """
    found: frozenset[str] = frozenset()
    for role, messages in _TRIALS.items():
        if not _shows(render, messages, found) and _shows(render, messages, found | {role}):
            found |= {role}
    return found


def in_form(messages: Sequence[JsonObject], roles: frozenset[str]) -> list[JsonObject]:
    """Return the messages, those of some roles as parts."""
    return [_as_parts(one) if _form_role(one) in roles else one for one in messages]


def _form_role(message: JsonObject) -> object:
    role = message.get("role")
    return "system" if role == "developer" else role


def _as_parts(message: JsonObject) -> JsonObject:
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def _shows(render: Render, messages: Sequence[JsonObject], roles: frozenset[str]) -> bool:
    try:
        return _WORD.lower() in render(in_form(messages, roles)).lower()
    except Exception:  # whatever a template's own code can raise
        return False

"""Whether a request wants reasoning, in the words of OpenAI, transformers and other servers."""

from __future__ import annotations

from gemma4_compile.runtime.server import asks
from gemma4_compile.runtime.server.fields import Fields

OTHERS = frozenset({"enable_thinking", "reasoning", "think", "thinking"})
"""Fields of other servers, which a strict request has not."""
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_OPEN_EFFORTS = ("auto", "default")  # as other servers call what nobody chose
_KINDS = {"enabled": True, "adaptive": True, "auto": None, "disabled": False}


def read_thinking(fields: Fields) -> tuple[bool | None, tuple[str, ...]]:
    """Read the fields that switch reasoning on and off; the most particular one counts.

    Returns
    -------
    None where the request leaves it to the server; and the template's options besides that
    """
    options = fields.inner("chat_template_kwargs", fields.get("chat_template_kwargs", dict, {}))
    options.skip_unknown({"enable_thinking"}, asks.TEMPLATE_OPTIONS)
    stated = (
        options.get("enable_thinking", bool),
        fields.get("enable_thinking", bool),
        read_switch(fields, "think"),
        read_switch(fields, "thinking"),
        read_switch(fields, "reasoning"),
        read_effort(fields, "reasoning_effort"),
    )
    chosen = next((each for each in stated if each is not None), None)
    told = {"enable_thinking", *asks.TEMPLATE_OPTIONS}
    return chosen, tuple(name for name in options.names() if name not in told)


def read_switch(fields: Fields, name: str) -> bool | None:
    """Whether a field asks for reasoning: true or false, an effort, or an object that says so."""
    value = fields.raw(name)
    if isinstance(value, str):
        return read_effort(fields, name)
    if not isinstance(value, dict) and value != []:
        return fields.get(name, bool)
    inner = fields.inner(name, value)
    inner.skip_unknown({"effort", "enabled", "type"}, asks.REASONING)
    kind = inner.get("type", str)
    if kind is not None and kind not in _KINDS:
        raise inner.error("type", f"expected one of {', '.join(_KINDS)}")
    stated = (
        inner.get("enabled", bool),
        read_effort(inner, "effort"),
        _KINDS[kind] if kind else None,
    )
    return next((each for each in stated if each is not None), None)


def read_effort(fields: Fields, name: str) -> bool | None:
    """Whether an effort asks for reasoning; None where it leaves that to the server."""
    effort = fields.get(name, str)
    if not effort or effort in _OPEN_EFFORTS:  # some pages send an empty one
        return None
    if effort not in _EFFORTS:
        raise fields.error(name, f"expected one of {', '.join(_EFFORTS)}")
    return effort != "none"

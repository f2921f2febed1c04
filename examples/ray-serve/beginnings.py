"""What requests begin with, so that those which begin alike go to the same replica."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

LEADING = ("system", "instructions", "tools")
"""Fields that stand before every message of a prompt, in the protocols that have them."""
FEWEST_BYTES = 256
"""A shorter beginning is cheap to read again: then the first message of the user counts, too."""


OF_KEYS = ("authorization", "x-api-key", "api-key")
"""Headers that clients bring their keys in: OpenAI's, Anthropic's, and OpenAI's for Azure."""


def client_of(headers: Mapping[str, str]) -> str:
    """What a client is known by: the keys that it brings. Headers have names in lower case."""
    return json.dumps([headers.get(name) for name in OF_KEYS])


def beginning_of(path: str, key: str, body: bytes) -> str:
    """A name for what a request's prompt begins with, the same for requests that share it.

    That is what stands before the user's first message: system prompt, tools, instructions; where
    it is short, that message as well, so that a conversation stays where it began. Another path,
    or another `key` (what the client is known by), makes another name. A body that is no JSON
    object has one, too: the server says what is wrong with it.
    """
    try:
        request = json.loads(body)
        parts = [request.get("model"), _leading(request)] if isinstance(request, Mapping) else None
        text = None if parts is None else json.dumps(parts, sort_keys=True)
    except (ValueError, RecursionError):
        text = None
    named = body if text is None else text.encode()
    return hashlib.sha256(json.dumps([path, key]).encode() + named).hexdigest()[:32]


def _leading(request: Mapping[str, object]) -> list[object]:
    leading: list[object] = [request.get(field) for field in LEADING]
    messages = request.get("messages", request.get("input"))
    if not isinstance(messages, list):  # a completion: its text or ids, or the input as a text
        return [*leading, str(messages or request.get("prompt"))[:FEWEST_BYTES]]
    roles = [one.get("role") if isinstance(one, Mapping) else None for one in messages]
    first = next(
        (i for i, role in enumerate(roles) if role not in ("system", "developer")), len(roles)
    )
    leading += messages[:first]
    if len(json.dumps(leading)) < FEWEST_BYTES:
        leading += messages[first : first + 1]
    return leading

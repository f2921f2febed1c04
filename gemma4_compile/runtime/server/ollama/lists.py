"""Ollama's lists of models, those that are loaded, and what it shows of one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from gemma4_compile.options.serve import LATEST
from gemma4_compile.runtime.server.cards import ModelCard
from gemma4_compile.runtime.server.fields import Fields, Ignored
from gemma4_compile.types import JsonObject

FOREVER = "9999-12-31T23:59:59Z"
"""As Ollama says of what stays loaded."""

_DETAILS: JsonObject = {
    "parent_model": "",
    "format": "gemma4-compile",
    "family": "gemma4",
    "families": ["gemma4"],
    "parameter_size": "",
    "quantization_level": "",
}


def tags(cards: Sequence[ModelCard], since: str) -> JsonObject:
    """The answer of `/api/tags`; `since` is a time."""
    return {"models": [_model(card) | {"modified_at": since} for card in cards]}


def processes(cards: Sequence[ModelCard], expires: Sequence[str] = ()) -> JsonObject:
    """The answer of `/api/ps`.

    Parameters
    ----------
    cards : of models that are loaded
    expires : when each is not any more, if nobody asks; by default never
    """
    times = expires or [FOREVER] * len(cards)
    return {
        "models": [
            _model(card)
            | {"expires_at": time, "size_vram": 0, "context_length": card.context_length}
            for card, time in zip(cards, times, strict=True)
        ]
    }


def asked_name(body: object, ignored: Ignored) -> str:
    """The name in a request of `/api/show`; ApiError for a body that is none."""
    fields = Fields(body, ignored=ignored)
    fields.skip_unknown({"model", "name", "options", "system", "template", "verbose"}, {})
    name = fields.get("model", str) or fields.need("name", str)
    return name.removesuffix(LATEST)


def shown(card: ModelCard, since: str) -> JsonObject:
    """The answer of `/api/show`."""
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": _DETAILS,
        "model_info": {
            "general.architecture": "gemma4",
            "general.basename": card.name,
            "gemma4.context_length": card.context_length,
        },
        "capabilities": [*card.capabilities],
        "modified_at": since,
    }


def _model(card: ModelCard) -> JsonObject:
    name = card.name if ":" in card.name else card.name + LATEST  # pages ask for none but these
    return {
        "name": name,
        "model": name,
        "size": 0,
        "digest": hashlib.sha256(name.encode()).hexdigest(),
        "details": _DETAILS,
    }

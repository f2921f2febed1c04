"""Requests for embeddings, read into one form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemma4_compile.runtime.server.embeddings.asks import ASKS
from gemma4_compile.runtime.server.fields import Fields, Ignored

MOST_TEXTS = 2048  # of a request, as OpenAI has it
_MOST_DIMENSIONS = 1 << 18

Text = str | tuple[int, ...]


@dataclass(frozen=True)
class EmbeddingRequest:
    """What is asked for.

    Attributes
    ----------
    model : the name in the request, or None
    texts : or their tokens
    field : where they are, for messages
    dimensions : of a vector; None for all
    task : whose prompt is put in front of the texts
    truncate : leave out what is beyond the longest text
    special_tokens : put those around tokens which the tokenizer puts around a text
    as_base64 : vectors are little-endian float32 in base64, instead of numbers
    """

    model: str | None
    texts: Sequence[Text]
    field: str = "input"
    dimensions: int | None = None
    task: str | None = None
    truncate: bool = False
    special_tokens: bool = True
    as_base64: bool = False


def read_openai(body: object, ignored: Ignored) -> EmbeddingRequest:
    """A body of `/v1/embeddings`; ApiError names what is wrong with it."""
    fields = Fields(body, ignored=ignored)
    known = {
        "model",
        "input",
        "encoding_format",
        "dimensions",
        "user",
        "task",
        "add_special_tokens",
    }
    fields.skip_unknown(known, ASKS)
    fields.only("encoding_format", ("float", "base64"), "expected float or base64")
    texts = _texts(fields, "input", fields.raw("input"))
    if not texts or any(not text for text in texts):
        raise fields.error("input", "expected a text, or a list of texts, with something in it")
    special_tokens = fields.get("add_special_tokens", bool, True)
    if not special_tokens and any(isinstance(text, str) for text in texts):
        why = "texts stand between the tokenizer's tokens: give token ids in the place of texts"
        raise fields.error("add_special_tokens", why)
    return EmbeddingRequest(
        model=fields.get("model", str),
        texts=texts,
        dimensions=_dimensions(fields),
        task=fields.get("task", str),
        as_base64=fields.raw("encoding_format") == "base64",
        special_tokens=special_tokens,
    )


def read_embed(body: object, ignored: Ignored) -> EmbeddingRequest:
    """A body of Ollama's `/api/embed`, whose texts are cut where they are too long.

    Without a text, or with an empty one, it is asked to load the model alone.
    """
    fields = Fields(body, ignored=ignored)
    given = fields.raw("input")
    known = {"model", "input", "truncate", "dimensions", "options", "keep_alive", "task"}
    fields.skip_unknown(known, ASKS)
    return EmbeddingRequest(
        model=fields.get("model", str),
        texts=() if given in (None, "") else _texts(fields, "input", given),
        dimensions=_dimensions(fields),
        task=fields.get("task", str),
        truncate=fields.get("truncate", bool, True),
    )


def read_prompt(body: object, ignored: Ignored) -> EmbeddingRequest:
    """A body of Ollama's older `/api/embeddings`: one text, named `prompt`."""
    fields = Fields(body, ignored=ignored)
    known = {"model", "prompt", "dimensions", "options", "keep_alive", "task"}
    fields.skip_unknown(known, ASKS)
    prompt = fields.get("prompt", str, "")
    return EmbeddingRequest(
        model=fields.get("model", str),
        texts=(prompt,) if prompt else (),
        field="prompt",
        dimensions=_dimensions(fields),
        task=fields.get("task", str),
        truncate=True,
    )


def _dimensions(fields: Fields) -> int | None:
    return fields.integer("dimensions", 1, _MOST_DIMENSIONS, None)


def _texts(fields: Fields, name: str, value: object) -> tuple[Text, ...]:
    """One text, its tokens, or a list of either."""
    if value is None:
        fields.need(name, str)
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise fields.error(name, "expected a string, a list of strings, or token ids")
    if value and all(type(one) is int for one in value):
        return (tuple(value),)
    if len(value) > MOST_TEXTS:
        raise fields.error(name, f"expected up to {MOST_TEXTS} texts, found {len(value)}")
    return tuple(_text(fields, f"{name}[{index}]", one) for index, one in enumerate(value))


def _text(fields: Fields, name: str, value: object) -> Text:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(type(one) is int for one in value):
        return tuple(value)
    raise fields.error(name, "expected a string, or a list of token ids")

"""Contents of items of `/v1/responses`: texts, pictures and sounds."""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_compile.runtime.server.asks import IMAGE
from gemma4_compile.runtime.server.conversation import Part
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.runtime.server.media import GivenMedium
from gemma4_compile.runtime.server.media_parts import detail_of, read_medium
from gemma4_compile.runtime.server.openai_responses import asks


def read_parts(item: Fields, name: str, role: str) -> list[Part]:
    """The texts and media of a field: a text, or a list of parts."""
    content = item.raw(name)
    if isinstance(content, str):
        return [content]
    parts: list[Part] = []
    for index, entry in enumerate(item.need(name, list)):
        part = item.inner(f"{name}[{index}]", entry)
        parts.append(read_part(part, role))
    return parts


def read_part(part: Fields, role: str) -> Part:
    """One of them; ApiError for what this role cannot say."""
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
            return read_image(part)
        medium = read_medium(part) if kind in ("input_audio", "input_file") else None
        if medium is not None:
            return medium
    raise part.error(
        "type",
        f"expected input_text, output_text or input_image, found {kind[:60]!r}",
        code="unsupported_value",
    )


def read_image(part: Fields) -> GivenMedium:
    """The picture of a part: an address, and how closely to look.

    As chat completions have it the address is in an object, which may say how closely, too.
    """
    part.skip_unknown({"detail", "image_url", "prompt_cache_breakpoint", "type"}, asks.PART)
    value, fields, name = part.raw("image_url"), part, "image_url"
    if isinstance(value, Mapping) and not part.ignored.strict:
        fields, name = part.inner("image_url", value), "url"
        fields.skip_unknown({"url", "detail"}, IMAGE)
    detail = detail_of(fields if fields.has("detail") else part, has_original=True)
    return GivenMedium("image", fields.name(name), fields.need(name, str).strip(), detail)

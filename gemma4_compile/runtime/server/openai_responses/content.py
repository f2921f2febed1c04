"""Contents of items of `/v1/responses`: texts, pictures and sounds."""

from __future__ import annotations

from gemma4_compile.runtime.server.conversation import Part
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.runtime.server.media import DETAILS, GivenMedium
from gemma4_compile.runtime.server.media_parts import read_medium
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
    """The picture of a part: an address, and how closely to look."""
    part.skip_unknown({"detail", "image_url", "prompt_cache_breakpoint", "type"}, asks.PART)
    detail = part.get("detail", str, "auto")
    if detail == "original":  # as large as it is, as far as there is room
        detail = "high"
    if detail not in DETAILS:
        raise part.error("detail", f"expected one of {', '.join(DETAILS)}, original")
    return GivenMedium("image", part.name("image_url"), part.need("image_url", str), detail)

"""Contents of items: what each role can say."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.runtime.server.openai_responses.content import read_parts

TEXT = {"type": "input_text", "text": "a"}
PICTURE = {"type": "input_image", "image_url": "data:,"}
REFUSAL = {"type": "refusal", "refusal": "no"}


@pytest.mark.parametrize(
    ("content", "role", "texts"),
    [
        ("a", "user", ["a"]),
        ([TEXT, PICTURE], "tool", ["a", "data:,"]),
        ([REFUSAL, {**TEXT, "type": "output_text"}], "assistant", ["no", "a"]),
    ],
)
def test_texts_and_pictures(content: Any, role: str, texts: list[str]) -> None:
    parts = read_parts(Fields({"content": content}), "content", role)
    assert [part if isinstance(part, str) else part.text for part in parts] == texts


@pytest.mark.parametrize(
    ("content", "role", "param"),
    [
        ([TEXT, PICTURE], "assistant", "content[1].type"),
        ([REFUSAL], "user", "content[0].type"),
        ([{**PICTURE, "file_id": "f"}], "user", "content[0].file_id"),
        (None, "user", "content"),
    ],
)
def test_what_a_role_cannot_say_is_named(content: Any, role: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_parts(Fields({"content": content}), "content", role)
    assert (caught.value.status, caught.value.param) == (400, param)

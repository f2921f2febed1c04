from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.runtime.server.thinking import read_thinking


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, None),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "high"}, True),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"}, False),
        ({"reasoning_effort": ""}, None),
        ({"reasoning_effort": "auto"}, None),
        ({"reasoning_effort": "max"}, True),
        ({"reasoning": {"effort": "default"}}, None),
        ({"enable_thinking": True}, True),
        ({"think": False, "reasoning_effort": "low"}, False),
        ({"think": "low"}, True),
        ({"thinking": {"type": "enabled"}}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "auto"}, "reasoning_effort": "none"}, False),
        ({"reasoning": {"effort": "none"}}, False),
        ({"reasoning": {"enabled": True, "exclude": False, "summary": "auto"}}, True),
        ({"reasoning": {}, "think": None}, None),
    ],
)
def test_reasoning_is_switched_in_every_server_s_words(
    fields: dict[str, Any], thinking: bool | None
) -> None:
    assert read_thinking(Fields(fields)) == (thinking, ())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"think": "much"}, "think"),
        ({"think": 1}, "think"),
        ({"thinking": {"type": "much"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.budget_tokens"),
        ({"reasoning": {"exclude": True}}, "reasoning.exclude"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking"),
    ],
)
def test_what_cannot_be_switched_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_thinking(Fields(fields))
    assert caught.value.param == param


def test_other_options_are_the_template_s() -> None:
    options = {"enable_thinking": True, "colour": "red", "nothing": None}
    options |= {"add_generation_prompt": True, "documents": []}
    assert read_thinking(Fields({"chat_template_kwargs": options})) == (True, ("colour",))

"""The list of forbidden tokens in generation_config.json."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.checkpoint.suppressed_tokens import MAX_SUPPRESSED, suppressed_tokens
from gemma4_compile.errors import CheckpointError


@pytest.mark.parametrize("values", [{}, {"suppress_tokens": None}, {"suppress_tokens": []}])
def test_a_checkpoint_need_not_forbid_anything(values: dict[str, Any]) -> None:
    assert suppressed_tokens(values, 256) == ()


def test_ids_are_sorted_and_unique() -> None:
    values = {"suppress_tokens": [258883, 258882, 258883]}
    assert suppressed_tokens(values, 262144) == (258882, 258883)


@pytest.mark.parametrize("value", [5, "5", [1.0], [True], ["x"], {"5": 5}])
def test_damaged_list_is_refused(value: object) -> None:
    with pytest.raises(CheckpointError, match="`suppress_tokens` must be a list of token ids"):
        suppressed_tokens({"suppress_tokens": value}, 256)


def test_tokens_that_are_never_emitted_are_left_out() -> None:
    assert suppressed_tokens({"suppress_tokens": [-1, 5, 256, 10**9]}, 256) == (5,)


def test_long_list_is_refused() -> None:
    values = {"suppress_tokens": list(range(MAX_SUPPRESSED + 1))}
    with pytest.raises(CheckpointError, match="holds 65 tokens"):
        suppressed_tokens(values, 256)

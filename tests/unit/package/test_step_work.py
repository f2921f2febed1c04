"""What a library's metadata tell of its steps, and what that comes to."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.step_work import STEP_WORK, AttentionWork, StepWork, step_work

sizes = st.integers(1, 1 << 40)
attentions = st.builds(
    lambda whole, more, width, kv_bytes, window: AttentionWork(
        whole + more, whole, width, kv_bytes, window
    ),
    st.integers(0, 99),
    st.integers(1, 99),
    sizes,
    sizes,
    st.none() | sizes,
)
works = st.builds(StepWork, sizes, st.integers(0, 1 << 40), sizes, st.lists(attentions).map(tuple))


@given(works)
def test_metadata_give_back_what_was_counted(work: StepWork) -> None:
    assert step_work(json.loads(json.dumps({STEP_WORK: work.to_json()}))) == work


def test_libraries_of_before_tell_nothing() -> None:
    assert step_work({}) is None


WORK = StepWork(1000, 10, 7, (AttentionWork(3, 2, 8, 32, 5), AttentionWork(1, 0, 16, 64, None)))


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"weight_bytes": 0}, "weight_bytes"),
        ({"products": -1}, "products"),
        ({"products": "10"}, "products"),
        ({"chunk_products": None}, "chunk_products"),
        ({"attention": {}}, "attention"),
        ({"attention": [5]}, "attention"),
        ({"attention": [{**WORK.to_json()["attention"][0], "whole_layers": 4}]}, "whole_layers"),
        ({"attention": [{**WORK.to_json()["attention"][0], "window": 0}]}, "window"),
    ],
)
def test_a_damaged_field_is_named(changed: dict[str, object], field: str) -> None:
    with pytest.raises(ArtifactError, match=field):
        step_work({STEP_WORK: {**WORK.to_json(), **changed}})


@pytest.mark.parametrize("length", [1, 4, 5, 6, 23])
@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_operations_are_those_of_a_loop_over_tokens(length: int, chunk: int) -> None:
    operations = 0
    for token in range(1, length + 1):
        operations += 2 * 10
        if token % chunk == 0 or token == length:
            operations += 2 * 7
        for _ in range(min(token, 5)):  # keys in the window, each in two layers
            operations += 2 * (2 * 8 + 2 * 8)
    assert WORK.prompt_operations(length, chunk) == operations


def test_a_token_reads_weights_and_what_it_looks_at() -> None:
    assert WORK.token_bytes(3) == 1000 + 3 * 3 * 32 + 3 * 64
    assert WORK.token_bytes(100) == 1000 + 3 * 5 * 32 + 100 * 64

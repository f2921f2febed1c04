"""Whose keys and values a layer reads."""

from __future__ import annotations

import pytest

from gemma4_compile.model_spec.config.kv_sharing import first_shared_layer, kv_sources


def test_the_last_layers_are_the_ones_that_share() -> None:
    assert first_shared_layer(35, 20) == 15
    assert first_shared_layer(6, 0) == 6


def test_a_layer_that_shares_reads_the_last_owner_of_its_kind() -> None:
    assert kv_sources("SSFSSSF", 3) == (0, 1, 2, 3, 3, 3, 2)
    assert kv_sources("FSSFS", 2) == (0, 1, 2, 0, 2)


def test_without_sharing_every_layer_reads_its_own() -> None:
    assert kv_sources("SFSF", 0) == (0, 1, 2, 3)
    assert kv_sources("", 0) == ()


@pytest.mark.parametrize(
    ("kinds", "shared", "expected"),
    [("SSF", 1, (0, 1, None)), ("SF", 2, (None, None)), ("FFSS", 2, (0, 1, None, None))],
)
def test_a_kind_without_an_owner_has_no_source(
    kinds: str, shared: int, expected: tuple[int | None, ...]
) -> None:
    assert kv_sources(kinds, shared) == expected

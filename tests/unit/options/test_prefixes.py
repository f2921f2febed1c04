"""Sizes as options write them."""

from __future__ import annotations

import argparse

import pytest

from gemma4_compile.options.prefixes import default_memory, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("2GiB", 2 * 1024**3),
        ("512 mib", 512 * 1024**2),
        ("1.5GB", 1_500_000_000),
        ("0.25TiB", 256 * 1024**3),
        ("7b", 7),
        ("0kb", 0),
        ("1024TiB", 1024**5),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "2", "2G", "-1GiB", "1e3MB", "2GiBs", "1025TiB", "٣GiB", "."])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        parse_size(text)


def test_the_default_is_a_share_of_a_small_machine() -> None:
    sizes = [default_memory(n << 30, None) for n in (0, 8, 32, 256)]
    assert sizes == [0, 1 << 29, 2 << 30, 2 << 30]


def test_the_default_leaves_half_of_what_is_free() -> None:
    sizes = [default_memory(64 << 30, n << 29) for n in (0, 1, 4, 8, 100)]
    assert sizes == [0, 1 << 28, 1 << 30, 2 << 30, 2 << 30]

"""Files of prefixes that were written to do harm: right hashes, wrong contents."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gemma4_compile.runtime.library.kv_rows import RowEntry
from gemma4_compile.runtime.library.row_stream import Rows
from gemma4_compile.runtime.prefixes.prefix_file import (
    DamagedPrefixError,
    Layout,
    PrefixHeader,
    decode,
    encode,
    joined,
    name_of,
)
from gemma4_compile.runtime.prefixes.saved_rows import RowBlock

LAYOUT = Layout("package", (RowEntry(0, 30, 0, 1, 2), RowEntry(0, 9, 4, 1, 2)), "float16")
HEADER = PrefixHeader((5, -6, 7, 8, 9, 1), 5, ())


def rows(entry: int, first: int, count: int) -> Rows:
    return Rows(entry, first, np.full(LAYOUT.shape(entry, count), first, np.float16))


FULL, RINGS = RowBlock((rows(0, 0, 6),)), RowBlock((rows(1, 2, 4),))


def content_of(header: dict[str, Any], size: int = 32) -> bytearray:
    text = json.dumps({"layout": LAYOUT.id, "rows": [[1, 2, 4]], **header}).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return bytearray(len(text).to_bytes(8, "little") + text + bytes(size))


def read(content: bytearray) -> object:
    whole = memoryview(content)
    return decode(LAYOUT, name_of([whole]), whole)


def test_there_and_back() -> None:
    content = memoryview(bytearray(b"".join(encode(LAYOUT, RINGS, HEADER))))
    block, header = decode(LAYOUT, name_of([content]), content)
    assert header == HEADER
    np.testing.assert_array_equal(block.rows[0].array, RINGS.rows[0].array)
    state = joined(LAYOUT, header, [FULL], block)
    assert (state.length, state.shortest) == (6, 5)
    assert read(content_of({})) is not None


@pytest.mark.parametrize(
    "content",
    [
        bytearray(),
        bytearray(b"\xff" * 100),
        bytearray(b"\x04" + bytes(7) + b"null"),
        bytearray(b"\x02" + bytes(7) + b"[]"),
        content_of({"rows": [[1, 2, 4]]}, size=31),
        content_of({"rows": [[1, 2, 4]]}, size=33),
        content_of({"rows": [[2, 2, 4]]}),
        content_of({"rows": [[-1, 2, 4]]}),
        content_of({"rows": [[1, -2, 4]]}),
        content_of({"rows": [[1, 2, -4]]}),
        content_of({"rows": [[1, 2, 2**62]]}),
        content_of({"rows": [[1, 2, True]]}),
        content_of({"rows": [[1, 2]]}),
        content_of({"rows": 7}),
        content_of({"layout": "another"}),
        content_of({"keys": [1, 2], "shortest": 3, "blocks": []}),
        content_of({"keys": [1, "2"], "shortest": 1, "blocks": []}),
        content_of({"keys": [], "shortest": 0, "blocks": []}),
        content_of({"keys": [1], "shortest": 0, "blocks": [1]}),
        content_of({"keys": [1], "shortest": 0}),
        content_of({"rows": [], "keys": json.loads("[" * 400 + "]" * 400)}, size=0),
    ],
)
def test_what_is_no_file_of_a_prefix_is_refused(content: bytearray) -> None:
    with pytest.raises(DamagedPrefixError):
        read(content)


def test_another_content_than_the_name_says_is_refused() -> None:
    with pytest.raises(DamagedPrefixError, match="not what was written"):
        decode(LAYOUT, "0" * 64, memoryview(content_of({})))


@pytest.mark.parametrize(
    ("header", "blocks", "rings"),
    [
        (HEADER, [], RINGS),
        (HEADER, [RowBlock((rows(0, 0, 5),))], RINGS),
        (HEADER, [RowBlock((rows(0, 0, 7),))], RINGS),
        (HEADER, [RowBlock((rows(0, 1, 5),))], RINGS),
        (HEADER, [FULL, FULL], RINGS),
        (HEADER, [FULL], RowBlock(())),
        (HEADER, [FULL], RowBlock((rows(1, 3, 3),))),
        (HEADER, [FULL], RowBlock((rows(1, 2, 3),))),
        (PrefixHeader(tuple(range(31)), 30, ()), [RowBlock((rows(0, 0, 30),))], RINGS),
        (
            PrefixHeader(tuple(range(20)), 5, ()),
            [RowBlock((rows(0, 0, 20),))],
            RowBlock((rows(1, 2, 18),)),
        ),
    ],
)
def test_a_prefix_without_all_of_its_rows_is_refused(
    header: PrefixHeader, blocks: list[RowBlock], rings: RowBlock
) -> None:
    with pytest.raises(DamagedPrefixError):
        joined(LAYOUT, header, blocks, rings)

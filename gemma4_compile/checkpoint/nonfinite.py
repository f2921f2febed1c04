"""`--allow-nonfinite`: weights that are no finite numbers are read as 0, counted and named.

They are counted before anything is stored, over the whole checkpoint, so that the report does not
depend on how much of a conversion an earlier run had finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

import numpy as np

from gemma4_compile.checkpoint.match import row_reader
from gemma4_compile.checkpoint.safetensors_file import TensorInfo
from gemma4_compile.progress import Reporter
from gemma4_compile.quantization.convert import RowReader, row_blocks
from gemma4_compile.quantization.scheme import Float32Array
from gemma4_compile.system.parallel import in_order

Counts = Mapping[str, int]
"""Weights that are not finite, by checkpoint tensor; of tensors that have some."""


def finite_reader(read_rows: RowReader) -> RowReader:
    """Reads as `read_rows` does, but 0 where a weight is not finite."""

    def read(name: str, begin: int, end: int) -> Float32Array:
        rows = read_rows(name, begin, end)
        finite = np.isfinite(rows)
        return rows if finite.all() else np.where(finite, rows, np.float32(0))

    return read


def count_nonfinite(matched: Mapping[str, TensorInfo], reporter: Reporter) -> Counts:
    """Read every weight of a model on all cores, and count those that are not finite.

    Parameters
    ----------
    matched : the checkpoint's tensors by source name
    """
    read_rows = row_reader(matched)
    blocks = (
        (name, begin, end)
        for name, tensor in matched.items()
        for begin, end in row_blocks(tensor.shape)
    )

    def count(block: tuple[str, int, int]) -> tuple[str, int, int]:
        rows = read_rows(*block)
        return block[0], rows.size, rows.size - int(np.isfinite(rows).sum())

    counts = dict.fromkeys(matched, 0)
    total = sum(4 * int(np.prod(tensor.shape)) for tensor in matched.values())
    what = "looking for weights that are not finite"
    with reporter.progress(what, total) as advance, closing(in_order(count, blocks)) as results:
        advance(0)  # nothing was done before
        for name, size, bad in results:
            counts[name] += bad
            advance(4 * size)
    return {name: bad for name, bad in sorted(counts.items()) if bad}


def open_reader(
    matched: Mapping[str, TensorInfo],
    reporter: Reporter,
    *,
    allow_nonfinite: bool,
    originals: Mapping[str, TensorInfo] | None = None,
) -> tuple[RowReader, Counts | None]:
    """Reader of a model's weights, and the counts of those read as 0; None if none may be.

    Parameters
    ----------
    originals : the checkpoint's, where `matched` has values that were chosen in place of some
    """
    read_rows = row_reader(matched)
    if not allow_nonfinite:
        return read_rows, None
    counts = count_nonfinite(matched if originals is None else originals, reporter)
    for line in nonfinite_lines(counts):
        reporter.stage(line)
    return finite_reader(read_rows), counts


def nonfinite_lines(counts: Counts) -> list[str]:
    """Text that names the tensors and what is done to them."""
    if not counts:
        return ["every weight is finite: --allow-nonfinite changes nothing"]
    return [f"`{name}`: {count} not finite, stored as 0" for name, count in counts.items()]

"""Arguments of float16 become words, and nothing else of a kernel changes."""

import re
from dataclasses import replace

import pytest
from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.tir import bind, function, store
from gemma4_compile.passes.kernel_sources import kernel_source
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.common.blocks import launch, local
from gemma4_compile.targets.spec import WORDS

ROWS, COLS = 8, 64
SPEC = replace(target_spec("webgpu"), float16=WORDS)


def _kernel(offset: int = 0, doubled: bool = False, written: bool = False) -> tirx.PrimFunc:
    """Sums two neighbours, four kept ones and one half of a row a block; see the arguments."""
    with function(scheduled=True) as build:
        x = build.arg("x", (ROWS, COLS), "float16")
        y = build.arg("y", (ROWS, COLS), "float32")
        z = build.arg("z", (ROWS,), "float16")
        with launch(8, ROWS) as (block, _, thread):
            kept = local((1,), "float16")
            store(kept, x[block, thread], 0)
            quad = bind(x[block, T.ramp(thread * 4 + offset, 1, 4)].astype("float32x4"))
            T.buffer_store(y, quad, [block, T.ramp(thread * 4, 1, 4)])
            named = bind(kept[0] + kept[0] if doubled else kept[0])
            store(y, named.astype("float32"), block, thread)
            if written:
                store(z, x[block, thread], block)
    return build.result


def _text(func: tirx.PrimFunc) -> str:
    return kernel_source(func, "kernel", SPEC)


def test_halves_are_read_as_words_and_become_float32() -> None:
    text = _text(_kernel())
    assert re.search(r"\bf16\b", text) is None
    assert "x_ptr : array<u32>" in text
    # One half: the word that holds it, shifted by 16 bits where its index is odd.
    assert ">>1u)" in text
    assert "<<4u" in text or "* 16" in text
    # Four neighbours from a multiple of four on: two whole words.
    assert text.count("vec4(gemma4_halves(") == 1
    assert text.count("fn gemma4_halves(") == 1


def test_neighbours_from_an_odd_index_on_are_read_one_by_one() -> None:
    assert (
        _text(_kernel(offset=1)).count("gemma4_halves(")
        == _text(_kernel()).count("gemma4_halves(") + 2
    )


@pytest.mark.parametrize("change", ["doubled", "written"])
def test_halves_that_are_computed_or_written_are_refused(change: str) -> None:
    with pytest.raises(Exception, match="cannot read float16 as words"):
        _text(_kernel(**{change: True}))


def test_a_kernel_without_halves_stays_as_it_is() -> None:
    with function(scheduled=True) as build:
        x = build.arg("x", (ROWS,), "uint32")
        y = build.arg("y", (ROWS,), "uint32")
        with launch(8, 1) as (_, _, thread):
            store(y, x[thread], thread)
    native = kernel_source(build.result, "kernel", target_spec("webgpu"))
    assert _text(build.result) == native

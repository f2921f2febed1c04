"""CUDA's text of what kernels call by warpgroups."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gemma4_compile.operators.activations import HALVED_INT8, PACKED
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.targets.cuda import DEFAULT, HOPPER, IMAGES
from gemma4_compile.targets.cuda_warpgroups import SOURCES
from gemma4_compile.targets.kernels import make_kernel
from gemma4_compile.targets.kernels.tiles import warpgroups
from gemma4_compile.targets.kernels.tiles.warpgroups import HAS_WARPGROUPS, MULTIPLY
from gemma4_compile.targets.linker import ptx
from gemma4_compile.targets.warpgroup_tuning import WarpgroupTuning
from tests.unit.targets.test_cuda import need_compiler

TILES = [rows for rows, _ in WarpgroupTuning().tiles]


def test_every_call_has_a_text() -> None:
    text = inspect.getsource(warpgroups)
    named = set(re.findall(r'^[A-Z_]+ = "(gemma4_\w+)"$', text, re.MULTILINE))
    own = {MULTIPLY, HAS_WARPGROUPS}  # by columns; of the host
    assert named - own == {name for name in SOURCES if not name.startswith(MULTIPLY)}
    assert {f"{MULTIPLY}{rows}" for rows in TILES} <= set(SOURCES)


@pytest.mark.parametrize("name", [name for name in SOURCES if "decode" not in name])
def test_only_hopper_has_the_instructions(name: str) -> None:
    text = SOURCES[name]
    assert re.findall(r"__device__ void (\w+)\(", text) == [name]
    others = re.sub(r"#if defined.*?#endif", "", text, flags=re.DOTALL)
    assert "asm" in text
    assert "asm" not in others


def test_the_host_asks_before_it_launches_what_other_gpus_lack() -> None:
    """There the kernel is empty: results would be what memory held."""
    layout = WeightLayout(4, "float16", 32, 128, (3072,))
    operator = Linear(CHUNK, layout, PACKED, activations=HALVED_INT8)
    text = make_kernel(operator, DEFAULT).script()
    before, _, behind = text.partition(HAS_WARPGROUPS)
    assert before.splitlines()[-1].lstrip().startswith("if n >= T.int64(97) and T.call_extern(")
    own, _, others = behind.partition("\n    else:\n")
    call = "gemma4_warpgroup_"
    assert call in own
    assert call not in before + others
    assert others.count("threadIdx.x") == 3, "of 16 rows, of short chunks, and of tiles"


def test_images_have_the_products(tmp_path: Path) -> None:
    need_compiler()
    calls = "".join(f"{MULTIPLY}{rows}(x, a, a, 1);" for rows in TILES)
    orders = "".join(f"{name}();" for name, text in SOURCES.items() if f"{name}()" in text)
    body = f"{{ extern __shared__ unsigned a[]; {orders} {calls} }}"
    kernel = f'extern "C" __global__ void f(float* x) {body}'
    source = "\n".join(["#include <cuda_fp16.h>", *SOURCES.values(), kernel])
    for architecture in IMAGES:
        text = ptx.compile_ptx(source, architecture)
        found = set(re.findall(rb"m64n(\d+)k16", text))
        assert found == ({b"%d" % rows for rows in TILES} if architecture == HOPPER else set())
    if shutil.which("ptxas") is not None:
        path = tmp_path / "kernel.ptx"
        path.write_bytes(text)
        subprocess.run(["ptxas", f"-arch={HOPPER}", path, "-o", tmp_path / "k.cubin"], check=True)

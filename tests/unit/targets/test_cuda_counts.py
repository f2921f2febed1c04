"""CUDA's text of what draws add to memory of many threads."""

from __future__ import annotations

from gemma4_compile.operators.draws import DrawProbs, DrawTopP
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.cuda_counts import SOURCES
from gemma4_compile.targets.kernels import make_kernel
from gemma4_compile.targets.kernels.sampling.warp_sums import ADD_MASS, COUNT
from tests.unit.targets.test_cuda_intrinsics import cuda_source


def test_masses_of_many_blocks_and_counts_of_a_block_are_added_atomically() -> None:
    text = cuda_source(make_kernel(DrawProbs(4096, 4), target_spec("cuda")))

    assert SOURCES[ADD_MASS] in text
    assert SOURCES[COUNT] in text
    assert "atomicAdd((unsigned long long*)to" in SOURCES[ADD_MASS]
    assert "atomicAdd((unsigned int*)to" in SOURCES[COUNT]
    body = text[text.rindex("__global__") :]
    assert COUNT in body
    assert "masses_ptr[" in body.split(ADD_MASS, 1)[1].split(";", 1)[0]


def test_one_block_counts_in_its_own_memory() -> None:
    text = cuda_source(make_kernel(DrawTopP(4096), target_spec("cuda")))

    assert COUNT in text
    assert ADD_MASS not in text

"""Kernels for CUDA's tensor cores against the definitions, executed on an emulated device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tvm

from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.byte_tile_tuning import ByteTile, ByteTileTuning, ShortChunkTuning
from gemma4_compile.targets.spec import TargetSpec
from gemma4_compile.targets.tuning import FewRowTensorCoreTuning
from tests.fixed_scheme import FixedLayout
from tests.marks import slow_unless
from tests.metal import emulator
from tests.metal.emulated_kernels import (
    ORDERS,
    EmulatedCases,
    check_cuda_cases,
    is_found,
    link_cases,
)
from tests.metal.test_mistakes import BARRIER, other, without
from tests.numerics.attention.test_picture_attention_kernels import CHUNKS as MODALITIES
from tests.numerics.attention.test_picture_attention_kernels import picture_case
from tests.numerics.kernel_cases import KernelCase, differences, make_case
from tests.numerics.tensor_cores import (
    CHUNKS,
    DIVIDED,
    OPERATORS,
    PICTURES,
    chunk_cases,
    divided_cases,
    few_row_cases,
    few_rows_of_minima_cases,
    packed_chunk_cases,
    short_chunk_cases,
    two_kernel_cases,
)

OTHER_FORMS = [
    BoundedLinear(CHUNK, FixedLayout(bits, "float16", group, 64, (96,)), "float16", clipped=True)
    for bits, group in ((0, 0), (8, 32))
]
"""They have other kernels where there are tensor cores, too."""

QUICK_CHUNK, QUICK_DIVIDED = "copies", "groups of three"
EMULATED = [name for name in CHUNKS if name != "31B sliding"]  # with pictures 26B has its tiles
# "E2B full" has the tiles of the same chunk in EMULATED, and the splits of the others.
EMULATED_DIVIDED = [name for name in DIVIDED if name != "E2B full"]


@pytest.fixture(scope="module")
def emulated(
    metal_device: tvm.runtime.Device, tmp_path_factory: pytest.TempPathFactory
) -> EmulatedCases:
    cases = [make_case(operator, seed) for seed, operator in enumerate((*OPERATORS, *OTHER_FORMS))]
    library = link_cases(cases, emulator.TENSOR_CORES, tmp_path_factory.mktemp("kernels"))
    return EmulatedCases.load(cases, metal_device, library)


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_every_kernel_computes_its_definition(order: str, emulated: EmulatedCases) -> None:
    emulated.check(order)


@pytest.mark.parametrize("name", slow_unless(lambda name: name == QUICK_CHUNK, EMULATED))
def test_attention_of_a_chunk(name: str, metal_device: tvm.runtime.Device, tmp_path: Path) -> None:
    check_attention(list(chunk_cases([name])), metal_device, tmp_path)


@pytest.mark.parametrize("name", slow_unless(lambda name: name == QUICK_DIVIDED, EMULATED_DIVIDED))
def test_attention_of_a_chunk_that_divides_its_keys(
    name: str, metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    check_attention(list(divided_cases([name])), metal_device, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_attention_of_a_chunk_with_pictures(
    name: str, metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    modality = MODALITIES["a picture within text"]
    check_attention([picture_case(PICTURES[name], modality, 45)], metal_device, tmp_path)


MISTAKES = {
    "no barrier before the first keys": without(BARRIER, 0),
    "no barrier before values and parts of scores": without(BARRIER, 1),
    "no barrier before the next keys": without(BARRIER, 2),
    "sums that keep their scale": other(r"exp2\(\(\w+\[\d+\] - \w+\[\d+\]\)\)", "1.0f"),
    "values as keys lie": other("load_matrices_transposed", "load_matrices"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_attention_of_a_chunk_is_found(
    name: str, metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    cases = list(chunk_cases([QUICK_CHUNK]))[1:2]
    library = link_cases(cases, emulator.TENSOR_CORES, tmp_path)
    assert is_found(MISTAKES[name], cases, library, metal_device)


@pytest.mark.slow
def test_a_mistake_in_splits_is_found_up_to_the_border(
    metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    """Chunks of one row more have no splits that could be put together wrongly."""
    cases = list(divided_cases([QUICK_DIVIDED]))[-2:]
    library = link_cases(cases, emulator.TENSOR_CORES, tmp_path)
    change = other(r"exp2\([^;]*;", "1.0f;", kernels_without="multiply_add")
    with emulator.mistake(change), emulator.memory_of_cuda():
        results = EmulatedCases.load(cases, metal_device, library).run()
    wrong = [differences([case], [arrays]) for case, arrays in zip(cases, results, strict=True)]
    assert [bool(lines) for lines in wrong] == [True, False]


def check_attention(cases: list[KernelCase], device: tvm.runtime.Device, folder: Path) -> None:
    library = link_cases(cases, emulator.TENSOR_CORES, folder)
    check_cuda_cases(cases, library, device)


CUDA = target_spec("cuda").tuning.few_row_tensor_cores
SIZES = {
    "many warps a row": replace(CUDA, min_rows=1),
    "many rows a block": replace(CUDA, multiprocessors=1, min_rows=1),  # as in large matrices
    "another kernel for one and two rows": replace(CUDA, direct_bytes=1, min_rows=1),
}


@pytest.fixture(scope="module", params=SIZES)
def few_rows(
    request: pytest.FixtureRequest,
    metal_device: tvm.runtime.Device,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[EmulatedCases]:
    sizes = SIZES[request.param]
    tuning = replace(emulator.TENSOR_CORES.tuning, few_row_tensor_cores=sizes)
    spec = replace(emulator.TENSOR_CORES, tuning=tuning)
    cases = list(two_kernel_cases() if sizes.direct_bytes == 1 else few_row_cases())
    library = link_cases(cases, spec, tmp_path_factory.mktemp("few_rows"))
    with emulator.memory_of_cuda():
        yield EmulatedCases.load(cases, metal_device, library)


@pytest.mark.slow  # a chunk's are those above
@pytest.mark.parametrize("order", ORDERS)
def test_every_kernel_of_a_few_rows_computes_its_definition(
    order: str, few_rows: EmulatedCases
) -> None:
    few_rows.check(order)


def link_minima(cases: list[KernelCase], sizes: FewRowTensorCoreTuning, folder: Path) -> Path:
    tuning = replace(emulator.TENSOR_CORES.tuning, few_row_tensor_cores=sizes)
    return link_cases(cases, replace(emulator.TENSOR_CORES, tuning=tuning), folder)


@pytest.mark.parametrize("name", slow_unless(lambda name: name == "many rows a block", SIZES))
def test_every_kernel_of_a_few_rows_of_minima_computes_its_definition(
    name: str, metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    cases = list(few_rows_of_minima_cases())
    library = link_minima(cases, SIZES[name], tmp_path)
    check_cuda_cases(cases, library, metal_device)


WARP_BARRIER = "gemma4_warp_barrier();"


def test_words_that_are_decoded_before_a_barrier_are_found(
    metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    cases = list(few_rows_of_minima_cases())[:1]
    library = link_minima(cases, SIZES["many warps a row"], tmp_path)
    assert is_found(without(WARP_BARRIER, 1), cases, library, metal_device)


TILES = {
    "as CUDA": ByteTileTuning(),
    "tall parts": ByteTileTuning(
        narrow_to=0, wide=ByteTile(64, 128, 64, 32), experts=ByteTile(32, 64, 32, 16)
    ),
}


@pytest.fixture(scope="module", params=TILES)
def chunks(
    request: pytest.FixtureRequest,
    metal_device: tvm.runtime.Device,
    tmp_path_factory: pytest.TempPathFactory,
) -> EmulatedCases:
    tuning = replace(emulator.TENSOR_CORES.tuning, byte_tiles=TILES[request.param])
    spec = replace(emulator.TENSOR_CORES, tuning=tuning)
    # The other tile decodes every packing; odd shapes of each are under CUDA's own.
    cases = list(packed_chunk_cases(of_each_kind=request.param != "as CUDA"))
    library = link_cases(cases, spec, tmp_path_factory.mktemp("chunks"))
    with emulator.memory_of_cuda():
        return EmulatedCases.load(cases, metal_device, library)


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_every_kernel_of_packed_chunks_computes_its_definition(
    order: str, chunks: EmulatedCases
) -> None:
    chunks.check(order)


SHORT = {
    "blocks of 32 rows": ShortChunkTuning(32, 40, expert_rows=12),
    "blocks of 16 rows, many warps": ShortChunkTuning(16, 30, 40, 100, 12, multiprocessors=132),
}


def short_chunk_spec(sizes: ShortChunkTuning) -> TargetSpec:
    tuning = replace(emulator.TENSOR_CORES.tuning, short_chunks=sizes)
    return replace(emulator.TENSOR_CORES, tuning=tuning)


@pytest.mark.parametrize("name", slow_unless(lambda name: name == "blocks of 32 rows", SHORT))
def test_every_kernel_of_a_short_chunk_computes_its_definition(
    name: str, metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    cases = list(short_chunk_cases())
    library = link_cases(cases, short_chunk_spec(SHORT[name]), tmp_path)
    check_cuda_cases(cases, library, metal_device)


SHORT_MISTAKES = {
    "no barrier before sums are added up": without(BARRIER, 1),
    "no barrier before the next rows' sums": without(BARRIER, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT_MISTAKES)
def test_a_mistake_in_a_short_chunk_is_found(
    name: str, metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    cases = list(short_chunk_cases())[4:5]
    library = link_cases(cases, short_chunk_spec(SHORT["blocks of 32 rows"]), tmp_path)
    assert is_found(SHORT_MISTAKES[name], cases, library, metal_device)

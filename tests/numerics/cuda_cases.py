"""What is run of the kernels on a CUDA device: released sizes, odd shapes, every length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product

import numpy as np

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.draws import DrawPartials, DrawTopP, TopPBin
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.moe import (
    PermuteByExpert,
    Router,
    TopKExperts,
)
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.prologues import Routed
from gemma4_compile.operators.rows import CHUNK as ANY
from gemma4_compile.operators.sampling import SampleTopP, TopPHistogram
from gemma4_compile.targets import TargetSpec, target_spec
from gemma4_compile.targets.spec import FLOAT, INT8
from gemma4_compile.targets.tuning import FewRowTensorCoreTuning, GemmTuning
from tests.numerics import tensor_cores, test_kernels
from tests.numerics.attention import (
    test_few_row_attention,
    test_joint_attention,
    test_patch_kernels,
    test_shared_rows,
    test_span_kernels,
)
from tests.numerics.attention.test_attention_kernels import CHUNK, DECODE, PADDED_DECODE
from tests.numerics.attention.test_picture_attention_kernels import (
    BEFORE,
    SHAPES,
    all_rows_cases,
    cases_of,
    picture_case,
)
from tests.numerics.attention.test_picture_attention_kernels import CHUNKS as MODALITIES
from tests.numerics.drafting import test_drafting_kernels
from tests.numerics.kernel_cases import Array, KernelCase, differences, make_case, operators
from tests.numerics.linear import (
    test_bounded_kernels,
    test_few_row_linear,
    test_gemm_kernels,
    test_int8_kernels,
    test_minima_kernels,
    test_six_bit_kernels,
    test_static_rounding,
)
from tests.numerics.moe import test_expert_kernels, test_few_row_experts, test_few_row_norms
from tests.numerics.moe.test_expert_kernels import EXPERT_KINDS, EXPERTS
from tests.numerics.sampling import test_sampling_kernels
from tests.numerics.test_kernels import PART_BYTES, config_of
from tests.numerics.vision import test_vision_kernels

CUDA = target_spec("cuda")
LENGTHS = (0, 63, 1200)  # positions before the new ones


@dataclass(frozen=True)
class Group:
    """Cases that share a library, and how their results are compared."""

    spec: TargetSpec
    cases: Sequence[KernelCase]
    differences: Callable[[Sequence[KernelCase], Sequence[tuple[Array, ...]]], list[str]]


def _gemm_differences(
    cases: Sequence[KernelCase], results: Sequence[tuple[Array, ...]]
) -> list[str]:
    wrong = []
    for case, found in zip(cases, results, strict=True):
        for expected, array in zip(case.expected, found, strict=True):
            shown = expected > -1e30  # suppressed columns are exactly what they should be
            error = np.abs(array[shown].astype(np.float64) - expected[shown]).max()
            bound = test_gemm_kernels.ALLOWED * np.abs(expected[shown]).max()
            if not (error <= bound and np.array_equal(array[~shown], expected[~shown])):
                wrong.append(f"{case.operator}: off by {error}")
    return wrong


def _group(found: Sequence[Operator], spec: TargetSpec = CUDA) -> Group:
    cases = [make_case(operator, seed) for seed, operator in enumerate(found)]
    return Group(spec, cases, differences)


def _released(preset: str, quant: str, activations: str) -> Group:
    spec = replace(CUDA, activations=activations)
    return _group(operators(config_of(preset), quant, spec, PART_BYTES), spec)


def _experts(quant: str, activations: str) -> Group:
    spec = replace(CUDA, activations=activations)
    config = replace(config_of("gemma-4-26B-A4B-it"), num_experts=EXPERTS)
    found = operators(config, quant, spec, PART_BYTES)
    kinds = EXPERT_KINDS | {f"int8_{kind}" for kind in EXPERT_KINDS} | {TopKExperts.kind}
    return _group([op for op in found if op.variant in kinds or _is_around_experts(op)], spec)


def _is_around_experts(operator: Operator) -> bool:
    """Whether it routes, or adds both branches up."""
    if isinstance(operator, Linear):
        return isinstance(operator.prologue, Routed) or operator.prologue.branches > 1
    return isinstance(operator, ResidualNorm) and operator.packs and operator.branches > 1


def _whole_vocabulary() -> Group:
    """All experts routed, and the top-p set of flat, sharp and real distributions."""
    number = Gemma4Config.from_preset("gemma-4-26B-A4B-it").num_experts
    config = replace(config_of("gemma-4-26B-A4B-it"), num_experts=EXPERTS)
    floats = replace(CUDA, activations=FLOAT)  # its experts are chosen in a launch of their own
    found = operators(config, "q4f32", floats, PART_BYTES)
    routed: list[Operator] = []
    for op in found:
        if isinstance(op, Router | TopKExperts | PermuteByExpert):
            routed.append(replace(op, experts=number))
        elif isinstance(op, Linear) and isinstance(op.prologue, Routed):
            routed.append(replace(op, prologue=replace(op.prologue, experts=number)))
    cases = [make_case(operator, seed) for seed, operator in enumerate(routed)]
    sample = make_case(SampleTopP(262_144), 0)
    cases += [sample, make_case(TopPHistogram(262_144), 1)]
    cases += [make_case(DrawPartials(262_144, 64, ANY), 2)]
    cases += [make_case(operator(262_144), 2) for operator in (TopPBin, DrawTopP)]
    flat = np.zeros(262_144)
    spread = (test_kernels.deviating(14.0), test_kernels.deviating(0.02), flat)
    for logits in (*spread, test_kernels.one_of_many()):
        weights = np.exp(logits - logits.max()).astype(np.float32)
        cases.append(test_kernels.with_probabilities(sample, weights / weights.sum()))
    cases += test_sampling_kernels.cases_of()
    return Group(CUDA, cases, differences)


def picture_operators() -> list[Operator]:
    """Of vision towers and of the patch projection without one."""
    around = chain.from_iterable(test_vision_kernels.OPERATORS.values())
    matmuls = [*test_patch_kernels.OPERATORS, *test_bounded_kernels.OPERATORS]
    return list(dict.fromkeys([*around, *matmuls, *tensor_cores.OPERATORS]))


def _few_rows() -> Group:
    """Matmuls, experts and attention of one to nine rows."""
    cases = test_few_row_linear.cases_of(test_few_row_linear.OPERATORS)
    cases += test_few_row_experts.cases_of(test_few_row_experts.OPERATORS)
    cases += test_few_row_norms.cases_of(test_few_row_norms.OPERATORS)
    for name in test_few_row_attention.SHAPES:
        cases += test_few_row_attention.cases_of(name)
    for name in test_joint_attention.SHAPES:
        cases += test_joint_attention.cases_of(name)
    for name in test_shared_rows.OWNERS:
        cases += test_shared_rows.cases_of(name)
    combinations = enumerate(test_few_row_attention.combinations())
    cases += [make_case(one, seed, rows=1 + 2 * seed) for seed, one in combinations]
    return Group(CUDA, cases, differences)


def _few_rows_on_tensor_cores(
    sizes: FewRowTensorCoreTuning,
    cases: Callable[[], Iterable[KernelCase]] = tensor_cores.few_row_cases,
) -> Group:
    spec = replace(CUDA, tuning=replace(CUDA.tuning, few_row_tensor_cores=sizes))
    return Group(spec, list(cases()), differences)


def _gemm(tuning: str) -> Group:
    spec = replace(CUDA, tuning=replace(CUDA.tuning, gemm=test_gemm_kernels.TUNINGS[tuning]))
    found = [make_case(op, seed) for seed, op in enumerate(test_gemm_kernels.OPERATORS)]
    return Group(spec, found, _gemm_differences)


def _int8_gemm(tuning: str) -> Group:
    """Matmuls of a chunk on packed rows, in a way to divide the work, and who packs the rows."""
    tile = test_gemm_kernels.INT8_TUNINGS[tuning]
    spec = replace(CUDA, tuning=replace(CUDA.tuning, int8_gemm=tile))
    return _group(test_gemm_kernels.INT8_OPERATORS, spec)


def _attention() -> Group:
    shapes = (*DECODE.values(), *PADDED_DECODE, *CHUNK.values())
    cases = [make_case(operator, n, n) for operator in shapes for n in LENGTHS]
    merges = [(8, 512, 128, "float16"), (2, 16, 7, "float32"), (5, 20, 300, "float16")]
    cases += [make_case(CombineSplits(*shape), 1) for shape in merges]
    return Group(CUDA, cases, differences)


def _chunks() -> Group:
    """Attention of chunks on tensor cores, of pictures, too, after any number of positions."""
    cases = [*tensor_cores.chunk_cases(), *tensor_cores.divided_cases()]
    cases += [make_case(one, 1, 1200, rows=75) for one in tensor_cores.CHUNKS.values()]
    for operator in tensor_cores.PICTURES.values():
        cases += [picture_case(operator, *of) for of in product(MODALITIES.values(), BEFORE)]
    return Group(CUDA, cases, differences)


def _pictures() -> Group:
    cases = [*all_rows_cases(), *(case for name in SHAPES for case in cases_of(name))]
    return Group(CUDA, cases, differences)


def _with_unlike_tiles() -> Group:
    """The tile of wide matrices, which the released ones choose by their true sizes only."""
    large = replace(CUDA.tuning.gemm, small_to=0, medium_to=0, large_from=0)
    assert isinstance(large, GemmTuning)
    spec = replace(CUDA, tuning=replace(CUDA.tuning, gemm=large))
    found = [make_case(op, seed) for seed, op in enumerate(test_gemm_kernels.OPERATORS)]
    return Group(spec, found, _gemm_differences)


GROUPS: Mapping[str, Callable[[], Group]] = {
    "E2B": lambda: _released("gemma-4-E2B-it", "q4f16", INT8),
    "E2B, float16": lambda: _released("gemma-4-E2B-it", "q4f16", FLOAT),
    "31B, float32": lambda: _released("gemma-4-31B-it", "q4f32", FLOAT),
    "experts": lambda: _experts("q4f16", INT8),
    "experts, 8 bits, float16": lambda: _experts("q8f16", FLOAT),
    "whole vocabulary": _whole_vocabulary,
    "minima": lambda: _group(test_minima_kernels.operators()),
    "6 bits": lambda: _group(test_six_bit_kernels.operators()),
    "int8, odd shapes": lambda: _group(test_int8_kernels.odd_shapes()),
    "int8, several tiles": lambda: _group(
        test_int8_kernels.several_tiles(), test_int8_kernels.with_few_blocks(CUDA)
    ),
    "steps of a checkpoint": lambda: _group(
        [*test_static_rounding.OPERATORS, *test_static_rounding.ROUNDING]
    ),
    **{f"gemm, {name}": partial(_gemm, name) for name in test_gemm_kernels.TUNINGS},
    "gemm, large tile": _with_unlike_tiles,
    **{f"int8 gemm, {name}": partial(_int8_gemm, name) for name in test_gemm_kernels.INT8_TUNINGS},
    "packed chunks on tensor cores": lambda: Group(
        CUDA, list(tensor_cores.packed_chunk_cases()), differences
    ),
    "around experts": lambda: _group(test_expert_kernels.matmuls_around_experts()),
    "attention": _attention,
    "attention of pictures": _pictures,
    "attention of chunks on tensor cores": _chunks,
    "few rows": _few_rows,
    "few rows, many warps a row": lambda: _few_rows_on_tensor_cores(
        replace(CUDA.tuning.few_row_tensor_cores, min_rows=1)
    ),
    "few rows, many rows a block": lambda: _few_rows_on_tensor_cores(
        replace(CUDA.tuning.few_row_tensor_cores, multiprocessors=1, min_rows=1)
    ),
    "few rows, two kernels": lambda: _few_rows_on_tensor_cores(
        replace(CUDA.tuning.few_row_tensor_cores, direct_bytes=1, min_rows=1),
        tensor_cores.two_kernel_cases,
    ),
    "drafters": lambda: Group(CUDA, test_drafting_kernels.all_cases(), differences),
    "pictures": lambda: _group(picture_operators()),
    "texts": lambda: _group([*test_span_kernels.OPERATORS, *test_span_kernels.RELEASED]),
}

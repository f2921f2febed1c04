"""Metal kernels against the definitions that define them, every one compiled and executed."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import tvm

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.draws import DrawPartials, DrawProbs, DrawTopP, TopPBin
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.halved_rows import HalveRows
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.moe import RouterScores
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.packed_texts import SpanAttention
from gemma4_compile.operators.padded_rows import KeptRows, ShiftedRotary
from gemma4_compile.operators.padded_texts import FirstRows, PackedTexts
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.operators.vision_attention import PatchAttention
from gemma4_compile.targets.kernels.linear.few_row_shape import few_row_shape
from gemma4_compile.targets.tuning import FewRowTuning
from tests import models
from tests.metal import emulator
from tests.metal.emulated_kernels import ORDERS, EmulatedCases, link_cases
from tests.numerics.attention.test_attention_kernels import DECODE, PADDED_DECODE
from tests.numerics.attention.test_divided_keys import KERNELS as OF_PARTS
from tests.numerics.attention.test_divided_keys import cases_of as cases_of_parts
from tests.numerics.attention.test_few_row_attention import SHAPES as FEW_ROWS
from tests.numerics.attention.test_few_row_attention import cases_of as few_row_cases
from tests.numerics.attention.test_few_row_attention import combinations
from tests.numerics.attention.test_joint_attention import cases_of as joint_cases
from tests.numerics.attention.test_joint_attention import one_row_cases
from tests.numerics.attention.test_patch_kernels import OPERATORS as PATCHES
from tests.numerics.attention.test_picture_attention_kernels import all_rows_cases, cases_of
from tests.numerics.attention.test_span_kernels import OPERATORS as SPANS
from tests.numerics.audio.test_audio_kernels import OPERATORS as AUDIO
from tests.numerics.drafting.test_drafting_kernels import OPERATORS as DRAFTING
from tests.numerics.kernel_cases import KernelCase, make_case, operators
from tests.numerics.linear.test_bounded_kernels import OPERATORS as BOUNDED
from tests.numerics.linear.test_few_row_linear import MOST, exact, exact_cases, quantized
from tests.numerics.linear.test_linear_pair import OPERATORS as PAIRS
from tests.numerics.linear.test_minima_kernels import floats as with_minima
from tests.numerics.linear.test_six_bit_kernels import floats as six_bits
from tests.numerics.linear.test_static_rounding import OPERATORS as STEPPED
from tests.numerics.linear.test_static_rounding import ROUNDING
from tests.numerics.linear.test_windows import cases as windows
from tests.numerics.moe.test_few_row_experts import cases_of as few_row_experts
from tests.numerics.moe.test_few_row_experts import exact_operators as exact_experts
from tests.numerics.moe.test_few_row_norms import FLOATS as FEW_ROW_NORMS
from tests.numerics.moe.test_few_row_norms import cases_of as few_row_norms
from tests.numerics.moe.test_few_row_router import all_cases as few_row_routers
from tests.numerics.norms.test_altup import altup_operators
from tests.numerics.sampling.test_sampling_kernels import cases_of as draws_of_rows
from tests.numerics.vision.test_vision_kernels import OPERATORS as VISION

PART_BYTES = 1 << 14  # matrices of some operators come in several parts

# What a model has that the ones before it have not.
E2B, EXPERTS, K_IS_V = ("e2b", "q4f16"), ("moe", "q8f16"), ("dense", "q4f32")
ADDED = {
    EXPERTS: "top_k_experts combine_experts expert_down expert_gate_up expert_gemm "
    "expert_residual_norm permute_by_expert normed_linear routed_linear router",
    K_IS_V: "prefill_attention decode_attention linear combined_linear qk_norm_rope_cache",
}


def all_operators() -> tuple[Operator, ...]:
    found: dict[Operator, None] = {}
    for kind, quant in (E2B, *ADDED):
        config = Gemma4Config.from_dict(models.config_file(models.KINDS[kind], "hub", "float32"))
        wanted = ADDED.get((kind, quant), "").split()
        for operator in operators(config, quant, emulator.SPEC, PART_BYTES):
            if not wanted or operator.variant in wanted:
                found[operator] = None
    # Metal binds so many buffers that a model's gate and up always have the router beside them.
    found[RouterScores(64, 8, 1e-6, 0.125, "float16")] = None
    # Splits of so few heads are always merged by the output projection.
    found[CombineSplits(8, 64, 20, "float16")] = None
    # Where an index has one value, TVM makes no vectors of the memory that threads share.
    found[CombineSplits(8, 64, 1, "float16")] = None
    found.update(dict.fromkeys([DECODE["smallest heads"], *PADDED_DECODE[::2]]))
    found.update(dict.fromkeys([*chain.from_iterable(VISION.values()), *BOUNDED, *PATCHES, *SPANS]))
    found.update(dict.fromkeys(AUDIO))
    found.update(dict.fromkeys([*STEPPED, *six_bits(), *with_minima()]))
    found.update(dict.fromkeys(op for op in ROUNDING if not op.packs))
    found.update(dict.fromkeys(PAIRS))
    found.update(dict.fromkeys(altup_operators(CHUNK, 3, 64, "float16")))
    # Vocabularies of a size that an emulated device goes through in seconds.
    found.update(dict.fromkeys(op for op in DRAFTING if _is_small(op)))
    return tuple(found)


def _is_small(operator: Operator) -> bool:
    sizes = (getattr(operator, "vocab", 0), getattr(operator, "count", 0))
    return max(sizes) < 1000


@pytest.fixture(scope="module")
def cases() -> list[KernelCase]:
    made = [make_case(operator, seed) for seed, operator in enumerate(all_operators())]
    shapes = ("tiny heads", "groups of three", "heads of 26 vectors")
    made += all_rows_cases() + [case for name in shapes for case in cases_of(name)]
    made += exact_cases()
    made += few_row_experts(exact_experts()) + few_row_norms(FEW_ROW_NORMS) + few_row_routers()
    made += draws_of_rows() + windows()
    made += [case for name in list(FEW_ROWS)[1::2] for case in few_row_cases(name)]
    # Of several sequences: one launch of all, and one of each row.
    for name in ("smallest heads", "tiny heads", "padded keys"):
        made += joint_cases(name) + one_row_cases(name)
    made += [case for name in OF_PARTS for case in cases_of_parts(name)]
    return [*made, *(make_case(one, seed, rows=5) for seed, one in enumerate(combinations()))]


@pytest.fixture(scope="module")
def emulated(
    cases: list[KernelCase],
    metal_device: tvm.runtime.Device,
    tmp_path_factory: pytest.TempPathFactory,
) -> EmulatedCases:
    library = link_cases(cases, emulator.SPEC, tmp_path_factory.mktemp("kernels"))
    return EmulatedCases.load(cases, metal_device, library)


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_every_kernel_computes_its_definition(order: str, emulated: EmulatedCases) -> None:
    emulated.check(order)


@pytest.mark.parametrize("order", ORDERS)
def test_blocks_of_few_rows_write_their_own_alone(
    order: str, metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    tuning = FewRowTuning(min_blocks=1)
    spec = replace(emulator.SPEC, tuning=replace(emulator.SPEC.tuning, few_rows=tuning))
    operator = exact(quantized(4, "float16", 96, 64), "float16")
    assert tuning.rows % few_row_shape(64, 96 // 8, tuning.rows, spec).at_once  # sums in two goes
    cases = [make_case(operator, 1, rows=MOST)]

    EmulatedCases.load(cases, metal_device, link_cases(cases, spec, tmp_path)).check(order)


@pytest.mark.slow
def test_every_kind_of_operator_is_among_the_cases(cases: list[KernelCase]) -> None:
    from gemma4_compile.targets.kernels.select import ONE_KERNEL

    attentions = (PatchAttention, SpanAttention, SplitAttention)
    chosen = (Linear, BoundedLinear, ExpertLinear, ResidualNorm, *attentions)
    missing = {*ONE_KERNEL, *(one.kind for one in chosen)} - {case.operator.kind for case in cases}
    # Metal has no kernels for vectors of packed bytes, which these make or take, and no
    # client pads pictures or texts there.
    packed = ("int8_", "quantize")
    padded = (KeptRows.kind, ShiftedRotary.kind, PackedTexts.kind, FirstRows.kind)
    # Blocks do not add to each other's masses there: test_draws.py has CUDA's.
    by_masses = [one.kind for one in (DrawPartials, DrawProbs, TopPBin, DrawTopP)]
    elsewhere = (*packed, HalveRows.kind, *padded, *by_masses)
    assert {kind for kind in missing if not kind.startswith(elsewhere)} == set()

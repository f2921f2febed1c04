"""The end of a drafter: what its definitions mean, and its kernels against them on Dawn."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.drafting import (
    BestToken,
    BestTokenPartials,
    CandidateLogits,
    ClusterTokens,
)
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.targets import target_spec
from tests.fixed_scheme import FixedLayout
from tests.marks import shares, under_limits
from tests.numerics.attention.test_attention_kernels import decode
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import KernelCase, differences, make_case
from tests.web.dawn import VulkanDriver

OPERATORS: tuple[Operator, ...] = (
    ClusterTokens(2048, 32, 262_144),
    ClusterTokens(16, 4, 256),
    ClusterTokens(30, 7, 330),
    ClusterTokens(1, 1, 40),
    ClusterTokens(64, 64, 64),
    ClusterTokens(37, 5, 111),
    ClusterTokens(100, 9, 1300),
    CandidateLogits(4096, WeightLayout(4, "float16", 32, 256, (5000,)), "float16"),
    CandidateLogits(64, WeightLayout(8, "float32", 32, 32, (100,)), "float32"),
    CandidateLogits(77, WeightLayout(4, "float32", 32, 1056, (64, 32)), "float32"),
    CandidateLogits(45, WeightLayout(4, "float32", 32, 64, (64, 32)), "float32", 64, True),
    CandidateLogits(30, WeightLayout(0, "float16", 0, 96, (64, 64)), "float16"),
    CandidateLogits(31, FixedLayout(0, "float32", 0, 36, (64,)), "float32"),
    BestToken(4096, True),
    BestToken(262_144, False),
    BestToken(33, True),
    BestToken(1, False),
    BestToken(256, True),
    BestTokenPartials(262_144),
    BestTokenPartials(5003),
    BestTokenPartials(900),
    # of several sequences
    ClusterTokens(16, 4, 256, CHUNK),
    ClusterTokens(37, 5, 111, CHUNK),
    CandidateLogits(64, WeightLayout(8, "float32", 32, 32, (100,)), "float32", rows=CHUNK),
    CandidateLogits(
        45, WeightLayout(4, "float32", 32, 64, (64, 32)), "float32", 64, True, rows=CHUNK
    ),
    BestToken(256, True, CHUNK),
    BestToken(4099, False, CHUNK),
    BestTokenPartials(5003, CHUNK),
)
# The layers of released drafters: heads, KV heads, head_dim, window.
ATTENTION = [
    decode(heads, kv_heads, dim, window, 4, 64, owns_kv=False)
    for heads, kv_heads, dim, window in (
        (4, 1, 256, 512),
        (4, 2, 512, None),
        (16, 8, 256, 1024),
        (16, 1, 512, None),
        (32, 16, 256, 1024),
        (32, 4, 512, None),
    )
]


def all_cases() -> list[KernelCase]:
    """Every operator, and each shape of attention at another length."""
    cases = [make_case(operator, seed) for seed, operator in enumerate(OPERATORS)]
    lengths = (1200, 63, 64, 0, 1, 63)
    return [*cases, *(make_case(*case, case[1]) for case in zip(ATTENTION, lengths, strict=True))]


def test_tokens_are_those_of_the_best_clusters() -> None:
    operator = ClusterTokens(4, 2, 12)
    scores = np.array([[0.5, 2.0, 2.0, -1.0]], np.float32)
    ordering = np.array([3, 1, 4, 11, 5, 9, 2, 6, 0, 7, 8, 10], np.float32)
    tokens = np.full(6, -1, np.int32)
    run(operator, scores, ordering, tokens)
    assert tokens.tolist() == [11, 5, 9, 2, 6, 0]


def test_a_cluster_whose_score_is_no_number_comes_last() -> None:
    operator = ClusterTokens(6, 6, 6)
    scores = np.array([[np.nan, -np.inf, 0.0, np.inf, -0.0, -np.nan]], np.float32)
    tokens = np.full(6, -1, np.int32)
    run(operator, scores, np.arange(6, dtype=np.float32), tokens)
    assert tokens[:4].tolist() == [3, 2, 4, 1]
    assert sorted(tokens[4:]) == [0, 5]


@pytest.mark.parametrize(
    ("logits", "tokens", "best"),
    [
        ([1.0, 3.0, 3.0, 2.0], [9, 8, 7, 6], 7),
        ([1.0, 3.0, 3.0, 2.0], None, 1),
        ([-5.0, -4.0, -6.0, np.nan], [3, 2, 1, 0], 2),
        ([np.nan] * 4, [9, 8, 7, 6], 9),
        ([np.nan] * 4, None, 0),
    ],
)
def test_best_token_is_always_a_token(
    logits: list[float], tokens: list[int] | None, best: int
) -> None:
    listed = [] if tokens is None else [np.array(tokens, np.int32)]
    token = np.full(1, -1, np.int32)
    run(BestToken(4, bool(listed)), np.array([logits], np.float32), *listed, token)
    assert token[0] == best


@pytest.mark.parametrize("seed", range(4))
def test_the_best_of_the_runs_is_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    operator = BestTokenPartials(3000)
    logits = np.minimum(rng.normal(size=(1, 3000)), 1.0 + seed).astype(np.float32)
    if seed == 3:  # a run without numbers, and the others without one that counts
        logits[0, :1024], logits[0, 1024:] = np.nan, -np.inf
    highest, tokens = np.zeros((1, 3), np.float32), np.full(3, -1, np.int32)
    run(operator, logits, highest, tokens)
    best, whole = np.full(1, -1, np.int32), np.full(1, -1, np.int32)
    run(BestToken(3, True), highest, tokens, best)
    run(BestToken(3000, False), logits, whole)
    assert best[0] == whole[0] == (0 if seed == 3 else np.argmax(logits))


@pytest.mark.parametrize("accumulate", [False, True])
def test_logits_are_products_with_the_rows(accumulate: bool) -> None:
    rng = np.random.default_rng(1)
    x, head = rng.normal(size=(1, 24)), rng.normal(size=(64, 24))
    tokens = np.array([103, 40, 39, 104, 70], np.int32)
    previous = np.arange(5, dtype=np.float32)[None]
    operator = CandidateLogits(
        5, WeightLayout(0, "float32", 0, 24, (64,)), "float32", 40, accumulate
    )
    logits = np.full((1, 5), -1, np.float32)
    args = (x.astype(np.float32), tokens, head.astype(np.float32))
    run(operator, *args, *([previous] if accumulate else []), logits)
    whole = (x @ head.T)[0]
    outside = previous[0] if accumulate else np.zeros(5)
    expected = [whole[63], whole[0], outside[2], outside[3], whole[30]]
    np.testing.assert_allclose(logits[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "operator", [operator for operator in OPERATORS if getattr(operator, "rows", ONE) == CHUNK]
)
def test_each_row_is_what_it_is_alone(operator: Any) -> None:
    """Byte for byte; what has no axis of rows, as weights, is all rows'."""
    case = make_case(operator, 5, rows=3)
    arrays = [array.copy() for array in case.arrays]
    run(operator, *arrays)
    alone = replace(operator, rows=ONE)
    shapes = [array.shape for array in make_case(alone, 5).arrays]
    for row in range(3):
        own = [
            array.copy() if array.shape == shape else array[row].reshape(shape)
            for array, shape in zip(case.arrays, shapes, strict=True)
        ]
        run(alone, *own)
        for position in case.changed:
            np.testing.assert_array_equal(own[position].ravel(), arrays[position][row].ravel())


@pytest.mark.dawn
@pytest.mark.parametrize(
    ("share", "limits"),
    under_limits(
        shares(range(len(OPERATORS) + len(ATTENTION)), 3, left=2), "compat", "subgroups-4"
    ),
)
def test_every_kernel_computes_its_definition(
    share: list[tuple[int, int]], limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec, whole = target_spec("webgpu", limits), all_cases()
    cases = [whole[number] for number, _ in share]

    results = run_on_dawn(cases, spec, lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)


@pytest.mark.dawn
def test_scores_that_are_no_numbers_give_tokens_all_the_same(
    lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    nan, inf = np.nan, np.inf
    values = ([nan], [nan, 1.0, nan], [inf, nan, -inf, -nan, 0.0, -0.0], [3.4e38, inf, -3.4e38])
    cases = [
        with_scores(ClusterTokens(*sizes), one)
        for sizes, one in product(((30, 7, 330), (64, 64, 64), (2048, 32, 4096)), values)
    ]

    results = run_on_dawn(cases, target_spec("webgpu"), lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)
    for case, (tokens,) in zip(cases, results, strict=True):
        assert len(set(tokens.tolist())) == len(tokens), case.label


def with_scores(operator: ClusterTokens, values: list[float]) -> KernelCase:
    """The operator with these scores, over and over."""
    case = make_case(operator, 3)
    scores, ordering, tokens = case.arrays
    scores[...] = np.resize(np.array(values, np.float32), scores.shape)
    tokens[...] = -1
    run(operator, scores, ordering, expected := tokens.copy())
    return replace(case, expected=(expected,))

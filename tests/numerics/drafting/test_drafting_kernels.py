"""The end of a drafter: what its definitions mean, and its kernels against them on Dawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.drafting import BestToken, CandidateLogits, ClusterTokens
from gemma4_compile.targets import target_spec
from tests.marks import LIMITS
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
    CandidateLogits(4096, 256, "float16"),
    CandidateLogits(64, 32, "float32"),
    CandidateLogits(77, 1056, "float32"),
    BestToken(4096, True),
    BestToken(262_144, False),
    BestToken(33, True),
    BestToken(1, False),
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


def test_logits_are_products_with_the_rows() -> None:
    rng = np.random.default_rng(1)
    x, rows = rng.normal(size=(1, 24)), rng.normal(size=(5, 24))
    logits = np.zeros((1, 5), np.float32)
    args = (x.astype(np.float32), rows.astype(np.float32), logits)
    run(CandidateLogits(5, 24, "float32"), *args)
    np.testing.assert_allclose(logits, x @ rows.T, rtol=1e-5, atol=1e-5)


@pytest.mark.dawn
@pytest.mark.parametrize("limits", [*LIMITS, pytest.param("subgroups-4", marks=pytest.mark.slow)])
def test_every_kernel_computes_its_definition(
    limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec, cases = target_spec("webgpu", limits), all_cases()

    results = run_on_dawn(cases, spec, lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)


@pytest.mark.dawn
def test_scores_that_are_no_numbers_give_tokens_all_the_same(
    lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    operator = ClusterTokens(30, 7, 330)
    case = make_case(operator, 3)
    scores = case.args[0]
    assert not isinstance(scores, int)
    scores[...] = np.nan

    ((tokens,),) = run_on_dawn([case], target_spec("webgpu"), lavapipe, tmp_path)

    assert ((tokens >= 0) & (tokens < operator.vocab)).all()

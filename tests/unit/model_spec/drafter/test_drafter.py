"""The drafter's choice among logits; whole drafters are in tests/parity/test_drafter.py."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.drafter.drafter import best_token
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.drafting import LOGITS_OF_BLOCK, BestToken, BestTokenPartials
from tests.unit.model_spec.exported import exported, operators, run, tensor


@pytest.mark.parametrize(
    ("count", "launches"),
    [
        (LOGITS_OF_BLOCK, (BestToken(LOGITS_OF_BLOCK, False),)),
        (LOGITS_OF_BLOCK + 1, (BestTokenPartials(LOGITS_OF_BLOCK + 1), BestToken(5, True))),
    ],
)
def test_many_logits_are_compared_in_two_launches(
    count: int, launches: tuple[Operator, ...]
) -> None:
    def body(logits: nn.Tensor) -> nn.Tensor:
        return best_token([logits])

    module = exported([], body, logits=tensor(1, count))
    assert tuple(operators(module)) == launches
    logits = np.random.default_rng(2).normal(size=(1, count)).astype(np.float32)
    logits[0, [3000, 1500, count - 1]] = 9.0
    (found,) = run(module, logits, [])
    assert found.tolist() == [1500]


def test_listed_candidates_are_compared_in_one_launch() -> None:
    count = 2 * LOGITS_OF_BLOCK

    def body(logits: nn.Tensor, tokens: nn.Tensor) -> nn.Tensor:
        return best_token([logits, tokens])

    module = exported([], body, logits=tensor(1, count), tokens=tensor(count, dtype="int32"))
    assert list(operators(module)) == [BestToken(count, True)]

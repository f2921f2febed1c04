"""A table of per-layer embeddings with more rows than the vocabulary, against transformers."""

from __future__ import annotations

import pytest

from tests import models
from tests.parity.conftest import CaseFactory
from tests.parity.test_recipes import run_two_turns

pytestmark = pytest.mark.parity


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["f32", "q4f16"])
def test_two_turns_in_chunks(case: CaseFactory, recipe: str) -> None:
    run_two_turns(case(models.LONG_TABLE, recipe))

"""Heads of other sizes than the released ones have, against transformers."""

from __future__ import annotations

import pytest

from tests import models
from tests.parity.conftest import CaseFactory
from tests.parity.test_recipes import run_two_turns

pytestmark = pytest.mark.parity


@pytest.mark.slow
@pytest.mark.parametrize("kind", models.ODD_HEADS)
def test_two_turns_in_chunks(case: CaseFactory, kind: str) -> None:
    run_two_turns(case(kind))

"""A checkpoint that recipes are tried on: opened with its texts, and refused before they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gemma4_compile.checkpoint.sources import ModelSource
from gemma4_compile.errors import UsageError
from gemma4_compile.model_spec.parameters import Parameter
from gemma4_compile.quantization.recipe_file import with_overrides
from gemma4_compile.verification.recipe_runs import Subject, open_runs
from tests import models
from tests.packages import Silent

pytestmark = pytest.mark.parity


def anything(source: ModelSource, table: Sequence[Parameter]) -> None:
    del source, table


def test_a_checkpoint_is_opened_with_its_texts(tmp_path: Path) -> None:
    models.write_checkpoint(tmp_path, models.DENSE_LIKE)
    subject = Subject(str(tmp_path), texts=("code", "script"), text_tokens=16)
    with open_runs(subject, Silent(), anything) as runs:
        assert [(one.name, len(one.ids)) for one in runs.texts] == [("code", 16), ("script", 16)]
        assert runs.left_out == ()
        assert runs.subject["texts"].keys() == {"code", "script"}
        assert str(tmp_path) not in str(runs.subject)
        one, three = runs.state_bytes(1), runs.state_bytes(3)
        masks = one - (three - one) / 2  # of the texts, whatever is run on them
        assert 0 < masks < one < three
        exact, four = runs.measure(
            [with_overrides(name, ()) for name in ("f32", "q4f16")], Silent()
        )
        assert exact.all.kl_max == 0
        assert four.all.kl_mean > 0


def test_what_is_wrong_with_recipes_is_said_before_texts_are_read(tmp_path: Path) -> None:
    models.write_checkpoint(tmp_path, models.DENSE_LIKE)
    (tmp_path / "tokenizer.json").unlink()

    def refuse(source: ModelSource, table: Sequence[Parameter]) -> None:
        assert {one.name for one in table} >= {"embed_tokens", "norm"}
        raise UsageError("no such recipe")

    with (
        pytest.raises(UsageError, match="no such recipe"),
        open_runs(Subject(str(tmp_path)), Silent(), refuse),
    ):
        pass


def test_an_encoder_has_no_distributions_to_compare() -> None:
    with (
        pytest.raises(UsageError, match="embeddings of texts, and no tokens"),
        open_runs(Subject("tiny-embedding"), Silent(), anything),
    ):
        pass

"""On a CPU in float32 a text's logits are the same to the last bit, however its tokens are read.

Not those of models with experts: one token's experts are summed in another order than a chunk's.
"""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.engine.joint import Riders
from tests import gemma3n, models
from tests.marks import slow_unless
from tests.parity.conftest import CaseFactory, Float32Array

pytestmark = pytest.mark.parity

KINDS = [kind for kind in (*models.KINDS, *gemma3n.KINDS) if kind != "moe"]


@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind == "e2b", KINDS))
def test_chunks_of_any_length_rows_beside_others_and_single_tokens_agree(
    case: CaseFactory, kind: str
) -> None:
    """Logits after the last token, and after others behind it: so keys and values are the same."""
    compiled = case(kind)
    engine = Engine.open(compiled.package, sequences=2)
    assert engine.model.rows_as_chunks
    length, chunk = 2 * compiled.window + 13, engine.prefill_chunk
    *text, first, second = (int(one) for one in compiled.prompt(length + 2, seed=1))
    writer, reader = engine.sequence, engine.sequences.add()

    def after() -> list[Float32Array]:
        return [
            engine.read_logits(reader),
            *(engine.decode(token, reader) for token in (first, second)),
        ]

    engine.prefill(text[:1], reader)
    for token in text[1:]:
        engine.decode(token, reader)
    expected, rng = after(), np.random.default_rng(3)
    for way in ("chunks", "pieces", "rows"):
        reader.clear()
        while reader.length < length:
            count = chunk if way == "chunks" else int(rng.integers(1, chunk + 1))
            part = text[reader.length : reader.length + count]
            if way == "rows" and rng.integers(2):
                writer.clear()
                engine.prefill([first, second], writer)
                part = part[: engine.joint.most_riders(1)]
                engine.joint.add_beside([writer], [first], Riders(reader, part))
            else:
                engine.prefill(part, reader)
        for one, other in zip(expected, after(), strict=True):
            np.testing.assert_array_equal(one, other, err_msg=way)


def test_rows_of_models_with_experts_are_not_said_to_be_the_same(case: CaseFactory) -> None:
    assert not Engine.open(case("moe").package, sequences=2).model.rows_as_chunks

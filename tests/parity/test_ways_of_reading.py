"""On a CPU a text's logits are the same to the last bit, however its tokens are read.

Not of int8 with float16: a chunk's vectors are rounded to that first, one token's are not.
"""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.engine.joint import Riders
from gemma4_compile.runtime.library.joint_steps import MOST_ROWS
from tests import gemma3n, models
from tests.marks import slow_unless
from tests.parity.conftest import CaseFactory, Float32Array

pytestmark = pytest.mark.parity

CASES = [
    *((kind, "f32", "float") for kind in (*models.KINDS, *gemma3n.KINDS)),
    *(("moe", recipe, "float") for recipe in ("q8f16", "q4f16", "f16", "q4kf16m")),
    *((kind, "q4f32", "int8") for kind in ("e2b", "moe")),
]
QUICK = [("e2b", "f32", "float"), ("moe", "f32", "float"), ("moe", "q8f16", "float")]


@pytest.mark.parametrize(
    ("kind", "recipe", "activations"), slow_unless(lambda *fields: fields in QUICK, CASES)
)
def test_chunks_of_any_length_rows_beside_others_and_single_tokens_agree(
    case: CaseFactory, kind: str, recipe: str, activations: str
) -> None:
    """Logits after the last token, and after others behind it: so keys and values are the same."""
    compiled = case(kind, recipe, activations=activations)
    engine = Engine.open(compiled.package, sequences=MOST_ROWS)
    assert engine.model.rows_as_chunks
    length, chunk = 2 * compiled.window + 13, engine.prefill_chunk
    *text, first, second = (int(one) for one in models.prompt(length + 2, seed=1))
    writer, reader = engine.sequence, engine.sequences.add()
    others = [engine.sequences.add() for _ in range(MOST_ROWS - 2)]

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
    reader.clear()
    engine.prefill(text[: -MOST_ROWS + 1], reader)
    for sequence in (writer, *others):
        sequence.clear()
    for count, token in enumerate(text[-MOST_ROWS + 1 :], 1):  # beside one, two, ... seven others
        beside = [writer, *others][:count]
        engine.prefill(text[count : count + 3], beside[-1])
        engine.joint.add([*beside, reader], [*text[:count], token])
    for one, other in zip(expected, after(), strict=True):
        np.testing.assert_array_equal(one, other, err_msg="joint steps")


@pytest.mark.slow
def test_int8_that_is_made_of_float16_is_not_said_to_be_the_same(case: CaseFactory) -> None:
    package = case("e2b", "q4f16", activations="int8").package
    assert not Engine.open(package, sequences=2).model.rows_as_chunks

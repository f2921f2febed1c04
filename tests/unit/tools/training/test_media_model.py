from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from tokenizers import Tokenizer

from gemma4_compile.tiny.checkpoint import shipped_file
from tests.marks import slow_unless
from tools.training.tiny.media_batches import MediaBatch, draw_pictures, draw_sounds
from tools.training.tiny.model import SHIPPED_FILES, read_config

torch = pytest.importorskip("torch", reason="torch is not installed (make setup)")

TOKENIZER = Tokenizer.from_buffer(shipped_file("tokenizer.json"))
CLOSE = 2e-4

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model() -> Any:
    from tools.training.tiny.media_model import MediaModel, load_stored

    torch.manual_seed(0)
    made = MediaModel(read_config(SHIPPED_FILES))
    load_stored(made, SHIPPED_FILES / "model.safetensors")
    return made.eval()


def expected_logits(model: Any, inputs: Any, **media: Any) -> Any:
    """transformers' own way."""
    found = model.network(input_ids=inputs.ids, use_cache=False, **media).logits
    return found.flatten(0, 1)[inputs.places - 1]


def pictures_batch(seed: int) -> MediaBatch:
    while True:
        batch = draw_pictures(Random(seed), TOKENIZER, 3000, test=False, most=4)
        if batch.sounds is None:
            return batch
        seed += 100


@pytest.mark.parametrize("seed", slow_unless(lambda seed: seed == 2, [1, 2]))
def test_pictures_are_read_as_transformers_reads_them(model: Any, seed: int) -> None:
    from tools.training.tiny.media_model import Inputs
    from tools.training.tiny.picture_drawing import positions

    inputs = Inputs.of(pictures_batch(seed), "cpu")
    assert inputs.patches is not None
    where = positions(inputs.grid, "cpu")[None].expand(len(inputs.patches), -1, -1)
    with torch.no_grad():
        expected = expected_logits(
            model, inputs, pixel_values=inputs.patches, image_position_ids=where
        )
        torch.testing.assert_close(model(inputs).logits, expected, atol=CLOSE, rtol=CLOSE)


@pytest.mark.slow
def test_sounds_are_read_as_transformers_reads_them_alone(model: Any) -> None:
    from tools.training.tiny.media_model import Inputs

    batch = draw_sounds(Random(2), TOKENIZER, 12.0, test=False)
    inputs = Inputs.of(batch, "cpu")
    assert inputs.features is not None
    assert inputs.mask is not None
    with torch.no_grad():
        read = model(inputs)
        expected = expected_logits(
            model, inputs, input_features=inputs.features, input_features_mask=inputs.mask
        )
        torch.testing.assert_close(read.logits, expected, atol=CLOSE, rtol=CLOSE)
        frames = int(inputs.mask[0].sum())
        alone = model.sound_rows(inputs.features[:1, :frames], inputs.mask[:1, :frames])
        torch.testing.assert_close(
            read.sound_rows[0, : alone.shape[1]], alone[0], atol=CLOSE, rtol=CLOSE
        )


@pytest.mark.slow
def test_stored_weights_are_read_again(model: Any, tmp_path: Path) -> None:
    from tools.training.tiny.media_model import MediaModel, load_stored, save

    save(model, tmp_path / "model.safetensors")
    assert (tmp_path / "model.safetensors").stat().st_size < 9_700_000
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    again = MediaModel(read_config(SHIPPED_FILES))
    load_stored(again, tmp_path / "model.safetensors")
    for name, value in model.network.state_dict().items():
        stored = again.network.state_dict()[name]
        torch.testing.assert_close(stored, value.bfloat16().float(), atol=0, rtol=0)

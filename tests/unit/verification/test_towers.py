"""The reference with media: the same rows and logits as from transformers' whole models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.checkpoint.match import Checkpoint, match, row_reader
from gemma4_compile.media.inputs import Picture, Sound
from gemma4_compile.media.settings import MediaSettings
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.package.media import settings_of
from gemma4_compile.quantization.convert import RowReader
from gemma4_compile.runtime.engine.media_prompt import Prompt, Run
from tests import media_checkpoints, tolerances
from tests.marks import slow_unless
from tests.media_checkpoints import IDS, KINDS, Truth
from tests.sounds import speech

pytestmark = pytest.mark.parity

from gemma4_compile.verification import towers  # noqa: E402
from gemma4_compile.verification.samples import read_picture, read_sound  # noqa: E402
from gemma4_compile.verification.transformer import run_transformers, text_config  # noqa: E402

COUNT = 4
BLOCK = 12


@dataclass(frozen=True)
class Subject:
    """A checkpoint, as verification reads it, and transformers' whole model."""

    checkpoint: Checkpoint
    config: Gemma4Config
    read: RowReader
    shapes: dict[str, tuple[int, ...]]
    truth: Truth

    @property
    def settings(self) -> MediaSettings:
        return settings_of(self.config, 280)

    def rows(self, medium: Picture | Sound) -> npt.NDArray[np.float32]:
        values = self.checkpoint.config
        return towers.medium_rows(values, text_config(values), self.read, self.shapes, medium)


@cache
def subject(kind: str, folder: Path) -> Subject:
    path = media_checkpoints.write_checkpoint(folder / kind, KINDS[kind])
    checkpoint = Checkpoint.open(path)
    config = Gemma4Config.from_dict(checkpoint.config, modalities=None)
    table = model_parameters(config, COMPONENTS)
    shapes = {source.name: source.shape for one in table for source in one.sources}
    read = row_reader(match(checkpoint.tensors, config))
    return Subject(checkpoint, config, read, shapes, Truth(path, KINDS[kind]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def whole_picture(subject: Subject) -> tuple[npt.NDArray[np.uint8], Picture]:
    """A picture of so many blocks that the processor leaves it as it is."""
    rgb = towers.scaled(read_picture(), (20 * BLOCK, 14 * BLOCK))
    assert subject.settings.image is not None
    return rgb, Picture.of(rgb, subject.settings.image)


def prompt_of(ids: Sequence[int], media: Sequence[Picture | Sound]) -> Prompt:
    """Ids whose placeholders are the rows of media, in order."""
    soft = {Picture: IDS["image_token_id"], Sound: IDS["audio_token_id"]}
    runs = []
    for medium in media:
        start = list(ids).index(soft[type(medium)])
        runs.append(Run(start, medium.rows, medium))
    return Prompt(list(ids), tuple(runs))


@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind == "e2b", KINDS))
def test_logits_after_media_are_those_of_the_whole_model(kind: str, folder: Path) -> None:
    one = subject(kind, folder)
    rgb, picture = whole_picture(one)
    media: list[Picture | Sound] = [picture]
    samples = []
    if one.settings.audio is not None:
        samples = [speech(20_001)]
        media.append(Sound.of(samples[0], one.settings.audio))
    marks = "<|image|>" + "<|audio|>" * len(samples)
    text = f"<bos><|turn>user\nLook: {marks}What is it?<turn|>\n<|turn>model\n"
    inputs = one.truth.inputs(text, [rgb], samples)
    tokens, expected = one.truth.generate(inputs, COUNT)

    ids = inputs["input_ids"][0].tolist()
    prompt = prompt_of([*ids, *tokens[:-1]], media)
    rows = range(len(ids) - 1, len(prompt))
    values = text_config(one.checkpoint.config)
    embedded = [one.rows(medium) for medium in media]
    found = run_transformers(values, "float32", one.read, one.shapes, prompt, rows, embedded)
    np.testing.assert_allclose(found.logits, expected, rtol=0, atol=tolerances.LOGITS_F32)
    assert found.logits.argmax(axis=-1).tolist() == tokens

    wrong = [np.roll(rows, 1, axis=0) for rows in embedded]
    other = run_transformers(values, "float32", one.read, one.shapes, prompt, rows, wrong)
    assert np.abs(other.logits - expected).max() > 100 * tolerances.LOGITS_F32


def test_every_weight_of_a_tower_is_read(folder: Path) -> None:
    one = subject("e2b", folder)
    read: set[str] = set()

    def noting(name: str, begin: int, end: int) -> npt.NDArray[np.float32]:
        read.add(name)
        return one.read(name, begin, end)

    noted = Subject(one.checkpoint, one.config, noting, one.shapes, one.truth)
    assert one.settings.audio is not None
    noted.rows(whole_picture(one)[1])
    noted.rows(Sound.of(read_sound(), one.settings.audio))
    prefixes = (
        "model.vision_tower",
        "model.embed_vision",
        "model.audio_tower",
        "model.embed_audio",
    )
    assert read == {name for name in one.shapes if name.startswith(prefixes)}


def test_pictures_are_scaled_as_the_processor_does_it() -> None:
    rgb = read_picture()
    found = towers.scaled(rgb, (19 * BLOCK, 13 * BLOCK))
    assert found.shape == (13 * BLOCK, 19 * BLOCK, 3)
    assert found.dtype == np.uint8
    assert np.abs(found.mean(axis=(0, 1)) - rgb.mean(axis=(0, 1))).max() < 2
    assert towers.scaled(rgb, (rgb.shape[1], rgb.shape[0])) is rgb

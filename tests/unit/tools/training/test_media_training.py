from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tokenizers import Tokenizer

from gemma4_compile.tiny.checkpoint import shipped_file
from tools.training.tiny.media_batches import media_batch
from tools.training.tiny.media_dialogues import (
    MediaDialogue,
    one_picture,
    sound_dialogue,
    text_dialogue,
)
from tools.training.tiny.model import SHIPPED_FILES

torch = pytest.importorskip("torch", reason="torch is not installed (make setup)")

TOKENIZER = Tokenizer.from_buffer(shipped_file("tokenizer.json"))
SMALL = [
    *("--dialogues", "60", "--text-tokens", "256", "--patches", "700", "--sound-seconds", "4"),
    *("--exam-batches", "1", "--exam-patches", "700", "--per-kind", "1", "--workers", "1"),
    *("--log-every", "1", "--warm-up", "4"),
]


def options(output: Path, *more: str) -> Any:
    from tools.training.tiny.media_training import arguments

    return arguments(["--output", str(output), *SMALL, *more])


def test_the_rate_rises_and_falls() -> None:
    from tools.training.tiny.media_training import rate_at

    assert rate_at(0, 0.0, 100) == pytest.approx(0.01)
    assert rate_at(500, 0.0, 100) == pytest.approx(1.0)
    assert rate_at(500, 0.5, 100) == pytest.approx(0.51)
    assert rate_at(500, 2.0, 100) == pytest.approx(0.02)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_one_batch_is_learned_by_heart(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from tools.training.tiny.media_training import Training

    shipped = load_file(SHIPPED_FILES / "model.safetensors")
    text_alone = {name: value for name, value in shipped.items() if "language_model" in name}
    save_file(text_alone, tmp_path / "text.safetensors")
    start = ("--start", str(tmp_path / "text.safetensors"))
    run = Training(options(tmp_path, *start, "--tower-rate", "3e-3", "--total-seconds", "1e6"))
    text = media_batch([MediaDialogue(text_dialogue(3), ())], TOKENIZER, 0)
    rng = Random(1)
    pictures = media_batch([one_picture(rng, (3, 2), False) for _ in range(2)], TOKENIZER, 1)
    sounds = media_batch([sound_dialogue(rng, 1.0, test=False) for _ in range(2)], TOKENIZER, 1)
    parts = (text, pictures, sounds)
    first = run.learn(parts)
    for _ in range(5):
        last = run.learn(parts)
    for name in ("pictures", "sounds", "pictures' rows", "sounds' rows"):
        assert float(last[name]) < 0.6 * float(first[name]), name


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_run_is_resumed(tmp_path: Path) -> None:
    from tools.training.tiny.media_training import train

    train(options(tmp_path, "--steps", "2", "--quantised-from", "0"))
    assert json.loads((tmp_path / "marks.json").read_text())["q4"]["all text"] > 0.5
    train(options(tmp_path, "--steps", "1", "--resume"))
    steps = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 2, 3, 3]
    assert not list(tmp_path.glob("*.partial"))

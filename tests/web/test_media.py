"""Pictures and sounds in the unmodified WebLLM client, against the Python runtime on the CPU."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
from PIL import Image

from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.media.inputs import Picture, Sound
from gemma4_compile.media.settings import AudioSettings, ImageSettings
from gemma4_compile.media.sizes import SQUARE, WIDE, client_size
from gemma4_compile.operators.picture import mark_row
from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.engine.media_prompt import Prompt, Run
from gemma4_compile.targets.spec import WORDS
from tests import media_checkpoints
from tests.packages import Silent, compile_small
from tests.sounds import speech
from tests.web.cpu_runtime import MARGIN
from tests.web.webllm import Reply, chat, run_in_webllm

pytestmark = [pytest.mark.browser, pytest.mark.slow]

Pixels = npt.NDArray[np.uint8]
LENGTH = 5
TOKENS = 70  # of a picture at most: a quarter of the usual number is a quarter of the time
RATE = 16_000
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": LENGTH, "ignore_eos": True}


@pytest.fixture(
    scope="module",
    params=[("e2b", WIDE), ("unified", SQUARE)],
    ids=lambda param: "-".join(param),
)
def packages(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """The same model that sees and hears, for the client and for the CPU."""
    folder = tmp_path_factory.mktemp("seeing")
    name, shape = request.param
    kind = media_checkpoints.KINDS[name]
    model = media_checkpoints.write_checkpoint(folder / "model", kind)
    for target in ("webgpu", "cpu"):
        compiler = compile_small if target == "webgpu" else compile_model  # as in compiled.py
        compiler(
            CompileRequest(
                model=str(model),
                target=target,
                quant="q4f16",
                float16=WORDS,  # float32 otherwise, as the tolerance asks
                output=folder / target,
                context_length=512,
                prefill_chunk=100,
                activations="float",
                modalities=None,
                image_tokens=TOKENS,
                image_shape=shape,
            ),
            Silent(),
        )
    return folder / "webgpu", folder / "cpu"


@pytest.fixture(scope="module")
def engine(packages: tuple[Path, Path]) -> Engine:
    return Engine.open(packages[1])


def settings_of(engine: Engine) -> tuple[ImageSettings, AudioSettings]:
    image, audio = engine.media.image, engine.media.audio
    assert image is not None
    assert audio is not None
    return image, audio


def random_blocks(columns: int, rows: int, block: int) -> Pixels:
    """A picture of so many blocks, each of a few colours."""
    cells = np.random.PCG64([columns, rows]).random_raw(columns * rows * 12) % np.uint64(256)
    squares = cells.astype(np.uint8).reshape(2 * rows, 2 * columns, 3)
    return np.kron(squares, np.ones((block // 2, block // 2, 1), np.uint8))


def container(picture: Pixels, image: ImageSettings) -> Pixels:
    """The picture that a page hands over: blocks in the order of the picture's own grid, a mark."""
    block, (across, down) = image.block_size, image.client_blocks
    width, height = client_size((across, down), block)
    columns, rows = picture.shape[1] // block, picture.shape[0] // block
    whole = np.zeros((height, width, 3), np.uint8)
    squares = (
        picture.reshape(rows, block, columns, block, 3).swapaxes(1, 2).reshape(-1, block, block, 3)
    )
    for index, square in enumerate(squares):
        y, x = index // across * block, index % across * block
        whole[y : y + block, x : x + block] = square
    whole[-1] = mark_row(columns, rows, width)
    return whole


def image_part(pixels: Pixels) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def sound_part(samples: npt.NDArray[np.float32]) -> dict[str, Any]:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype="FLOAT")
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "input_audio", "input_audio": {"format": "wav", "data": data}}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def check(engine: Engine, reply: Reply, media: Sequence[Picture | Sound]) -> None:
    """The client gave the model these media, and each token is what the CPU's logits allow."""
    image, audio = settings_of(engine)
    length = int(reply.usage["prompt_tokens"])
    ids, said = list(reply.watched[:length]), reply.watched[length:]
    runs = []
    across, down = image.client_blocks
    at = 0
    for medium in media:
        around = image if isinstance(medium, Picture) else audio
        begin = ids.index(around.begin, at)
        end = ids.index(around.end, begin)
        # The client gives every picture as many rows; those beyond its blocks leave no trace.
        given = across * down if isinstance(medium, Picture) else medium.rows
        assert ids[begin + 1 : end] == [around.soft] * given
        end = begin + 1 + medium.rows
        del ids[end : begin + 1 + given]
        runs.append(Run(begin + 1, medium.rows, medium))
        at = end + 1
    assert not {image.begin, audio.begin} & set(ids[at:])
    engine.clear()
    logits = engine.prefill(Prompt(ids, tuple(runs)))
    assert len(said) >= LENGTH - 1  # the client does not run the last one
    for token in said:
        assert logits[token] >= logits.max() - MARGIN
        logits = engine.decode(token)


def test_pictures_and_sounds_in_one_message_and_in_a_later_one(
    packages: tuple[Path, Path], engine: Engine, browser: str, tmp_path: Path
) -> None:
    image, audio = settings_of(engine)
    block = image.block_size
    across, down = image.client_blocks
    stretched = random_blocks(across, down, block)
    tall = random_blocks(down, across, block) if across != down else random_blocks(4, 16, block)
    small = random_blocks(3, 5, block)
    samples = speech(12_345)
    width, height = client_size((across, down), block)
    unmarked = np.zeros((height, width, 3), np.uint8)
    unmarked[: down * block] = stretched
    first: dict[str, Any] = {
        "role": "user",
        "content": [text_part("What is it?"), image_part(unmarked), sound_part(samples)],
    }
    alone: dict[str, Any] = {
        "role": "user",
        "content": [text_part("And this?"), image_part(container(tall, image))],
    }
    padded: dict[str, Any] = {
        "role": "user",
        "content": [
            *(image_part(container(small, image)), text_part("Which is larger?")),
            *(image_part(container(tall, image)), sound_part(samples)),
        ],
    }
    later = {"role": "user", "content": "And the other one?"}
    assistant = {"role": "assistant", "content": "A cat."}
    replies = run_in_webllm(
        packages[0],
        [
            chat([first], **GREEDY),
            chat([first, assistant, alone], **GREEDY),
            chat([alone], **GREEDY),
            chat([padded], **GREEDY),
            chat([padded, assistant, later], **GREEDY),
        ],
        tmp_path,
    )
    seen, turned = Picture.of(stretched, image), Picture.of(tall, image)
    little = Picture.of(small, image)
    assert seen.rows == turned.rows == across * down == (70 if across != down else 64)
    heard = Sound.of(samples, audio)
    check(engine, replies[0], [seen, heard])
    check(engine, replies[1], [seen, heard, turned])
    check(engine, replies[2], [turned])
    check(engine, replies[3], [little, turned, heard])
    check(engine, replies[4], [little, turned, heard])

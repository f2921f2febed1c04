"""From files to tokens: packages that see and hear beside transformers' processor and model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile import abi
from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import UsageError
from gemma4_compile.media.inputs import Medium, Picture, Sound
from gemma4_compile.media.preprocess import scaled
from gemma4_compile.runtime import Chat
from gemma4_compile.runtime.engine.media_prompt import Run
from tests import media_checkpoints, tolerances
from tests.marks import exhaustive_if
from tests.media_checkpoints import KINDS, Truth, with_room
from tests.packages import Silent, compile_small
from tests.sounds import speech

Float32Array = npt.NDArray[np.float32]
Image = npt.NDArray[np.uint8]
COUNT = 6
DENSE = "dense"  # its towers are those of the kind with experts
FEWEST = 70  # rows of a picture: towers of 280 take four times as long
QUESTION = "What is it?"


@dataclass(frozen=True)
class Subject:
    """A package, the same checkpoint in transformers, and what it was asked so far."""

    chat: Chat
    truth: Truth

    def picture(self, image: Image) -> Picture:
        settings = self.chat.media.image
        assert settings is not None
        return Picture.of(scaled(image, settings.max_budget, settings.block_size), settings)

    def sound(self, samples: Float32Array) -> Sound:
        assert self.chat.media.audio is not None
        return Sound.of(samples, self.chat.media.audio)

    def medium(self, value: Image | Float32Array) -> Medium:
        if value.dtype == np.uint8:
            return self.picture(value.astype(np.uint8))
        return self.sound(value.astype(np.float32))

    def ask(self, parts: Sequence[str | Image | Float32Array]) -> tuple[list[int], Float32Array]:
        """Greedy tokens of the reply to one message, and their logits; the chat goes on."""
        logits: list[Float32Array] = []

        def choose(found: Float32Array) -> int:
            logits.append(found.copy())
            return int(np.argmax(found))

        for part in parts[:-1]:
            assert not isinstance(part, str), "texts come last"
            self.chat.attach(self.medium(part))
        text = parts[-1]
        assert isinstance(text, str)
        list(self.chat.stream(text, choose, max_tokens=COUNT))
        assert self.chat.last_reply is not None
        return list(self.chat.last_reply.token_ids), np.stack(logits[:COUNT])


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Subject]:
    made: dict[tuple[str, int], Subject] = {}

    def make(kind: str, tokens: int = FEWEST) -> Subject:
        if (kind, tokens) not in made:
            folder = tmp_path_factory.mktemp(kind)
            whole = KINDS[kind] if tokens == 280 else with_room(KINDS[kind], tokens)
            model = media_checkpoints.write_checkpoint(folder / "model", whole)
            request = CompileRequest(
                model=str(model),
                target="cpu",
                quant="f32",
                output=folder / "package",
                context_length=max(1000, tokens + 200),
                prefill_chunk=max(300, tokens),
                modalities=None,
                image_tokens=tokens,
            )
            # Two of four as users get them: the others launch the same operators.
            is_usual = kind in ("e2b", "unified")
            (compile_model if is_usual else compile_small)(request, Silent())
            truth = Truth(model, whole, tokens)
            made[kind, tokens] = Subject(Chat.open(folder / "package"), truth)
        found = made[kind, tokens]
        found.chat.clear()
        return found

    return make


def checkered(columns: int, rows: int, cell: int = 30, seed: int = 0) -> Image:
    """A picture of random squares, so that scaling has edges to keep."""
    colours = np.random.PCG64([seed, columns, rows]).random_raw(columns * rows * 3) % np.uint64(256)
    cells = colours.astype(np.uint8).reshape(rows, columns, 3)
    return np.kron(cells, np.ones((cell, cell, 1), np.uint8))


WIDE, TALL = checkered(9, 6), checkered(5, 7)
SOUND = speech(20_001)
CASES: dict[str, list[Image | Float32Array]] = {
    "nothing": [],
    "a picture": [WIDE],
    "two pictures": [TALL, WIDE],
    "a sound": [SOUND],
    "a sound between pictures": [TALL, SOUND, WIDE],
}
QUICK = {"a sound between pictures"}  # what `make test` runs


def hears(kind: str) -> bool:
    return KINDS[kind].audio is not None


def rendered(parts: Sequence[Image | Float32Array], text: str, before: str = "<bos>") -> str:
    marks = "".join("<|image|>" if part.dtype == np.uint8 else "<|audio|>" for part in parts)
    return f"{before}<|turn>user\n{marks}{text}<turn|>\n<|turn>model\n"


def true_reply(
    truth: Truth, text: str, media: Sequence[Image | Float32Array]
) -> tuple[list[int], Float32Array, int]:
    inputs = truth.inputs(
        text,
        [part.astype(np.uint8) for part in media if part.dtype == np.uint8],
        [part.astype(np.float32) for part in media if part.dtype != np.uint8],
    )
    tokens, logits = truth.generate(inputs, COUNT)
    return tokens, logits, int(inputs["input_ids"].shape[1])


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize(
    ("kind", "case"),
    exhaustive_if(
        lambda kind, _: kind == DENSE,
        [
            (kind, case)
            for kind in KINDS
            for case in CASES
            if kind == "e2b"
            or case == ("a sound between pictures" if hears(kind) else "two pictures")
        ],
    ),
)
def test_tokens_are_those_of_transformers(
    kind: str, case: str, subject: Callable[..., Subject]
) -> None:
    asked, media = subject(kind), CASES[case]
    tokens, logits = asked.ask([*media, QUESTION])
    expected, right, length = true_reply(asked.truth, rendered(media, QUESTION), media)
    assert asked.chat.last_reply is not None
    assert asked.chat.last_reply.prompt_tokens == length
    assert tokens == expected
    np.testing.assert_allclose(logits, right, atol=tolerances.LOGITS_F32, rtol=0)


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize(
    ("kind", "tokens"),
    # All else of these tests has towers of 70 rows; parity/test_vision has E2B's with 280 next to
    # transformers, and test_tiny_media a package with room for them.
    [("unified", 1120), pytest.param("e2b", 280, marks=pytest.mark.exhaustive)],
)
def test_a_picture_of_another_budget(
    kind: str, tokens: int, subject: Callable[..., Subject]
) -> None:
    asked = subject(kind, tokens)
    _, logits = asked.ask([TALL, QUESTION])
    expected, right, length = true_reply(asked.truth, rendered([TALL], QUESTION), [TALL])
    assert asked.chat.last_reply is not None
    assert asked.chat.last_reply.prompt_tokens == length
    picture = asked.picture(TALL)
    assert 0.8 * tokens < picture.rows <= tokens, "it takes what the package has room for"
    assert logits.argmax(axis=-1).tolist() == expected
    np.testing.assert_allclose(logits, right, atol=tolerances.LOGITS_F32, rtol=0)


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("kind", exhaustive_if(lambda kind: kind == DENSE, KINDS))
def test_a_later_turn_sees_what_came_before(kind: str, subject: Callable[..., Subject]) -> None:
    asked = subject(kind)
    said, _ = asked.ask([WIDE, QUESTION])
    tokens, logits = asked.ask([TALL, "And that one?"])
    assert asked.chat.last_reply is not None
    assert asked.chat.last_reply.reused_tokens > 0.7 * FEWEST, "the picture is not run again"
    truth = asked.truth
    first = truth.inputs(rendered([WIDE], QUESTION), [WIDE], [])
    then = truth.inputs(rendered([TALL], "And that one?", ""), [TALL], [])
    expected, right = truth.generate(truth.after(first, said, then), COUNT)
    assert tokens == expected
    np.testing.assert_allclose(logits, right, atol=tolerances.LOGITS_F32, rtol=0)


@pytest.mark.slow
def test_sounds_are_causal_in_the_stock_client_as_well(
    subject: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = subject("unified")
    _, ours = asked.ask([SOUND, QUESTION])
    asked.chat.clear()
    monkeypatch.setattr(Run, "modality", abi.MODALITY_MEDIA)  # the client's, for all media
    _, clients = asked.ask([SOUND, QUESTION])
    np.testing.assert_array_equal(clients, ours)


@pytest.mark.slow
def test_another_picture_of_the_same_size_is_not_taken_for_the_first(
    subject: Callable[..., Subject],
) -> None:
    asked = subject("e2b")
    _, first = asked.ask([WIDE, QUESTION])
    asked.chat.messages.clear()
    _, second = asked.ask([checkered(9, 6, seed=1), QUESTION])
    assert np.abs(first[0] - second[0]).max() > 100 * tolerances.LOGITS_F32


@pytest.mark.slow
def test_what_a_package_does_not_take_is_refused(
    tiny_package: Path, subject: Callable[..., Subject]
) -> None:
    picture = subject("e2b").picture(WIDE)
    blind = Chat.open(tiny_package)
    blind.attach(picture)
    with pytest.raises(UsageError, match="takes no pictures"):
        list(blind.stream(QUESTION, lambda logits: int(np.argmax(logits)), max_tokens=1))

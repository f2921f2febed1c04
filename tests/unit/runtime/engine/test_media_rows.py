"""Media on a compiled package; its towers are functions of the test, at the library's boundary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.media.inputs import Picture, Sound
from gemma4_compile.media.settings import MediaSettings
from gemma4_compile.runtime import Chat, Sampler, SamplingOptions
from gemma4_compile.runtime.device.device import usable
from gemma4_compile.runtime.engine.generation import Generator
from gemma4_compile.runtime.engine.media_prompt import Prompt, Rows
from tests.media_files import SETTINGS, picture, sound
from tests.scripted_engine import encode, greedy, tiny_tokenizer
from tests.seeing_engine import Seeing, Towers

GREEDY = Sampler(SamplingOptions(temperature=0.0))


def expected_rows(medium: Picture | Sound, width: int) -> np.ndarray[Any, Any]:
    towers = Towers(width)
    given = [medium.samples] if isinstance(medium, Sound) else [medium.pixels, medium.positions]
    arrays = [tvm_ffi.from_dlpack(usable(np.array(a, np.float32))) for a in given[:1]]
    if isinstance(medium, Sound):
        return np.array(np.from_dlpack(towers.audio(arrays[0], None)))
    places = tvm_ffi.from_dlpack(usable(np.array(medium.positions, np.int32)))
    return np.array(np.from_dlpack(towers.image(arrays[0], places, None)))


@pytest.fixture(scope="module")
def loaded(tiny_package: Path) -> Seeing:
    return Seeing(tiny_package)


@pytest.fixture
def seeing(loaded: Seeing) -> Seeing:
    loaded.reset()
    return loaded


MARKS = {Picture: (1017, 1019, 1021), Sound: (1018, 1020, 1022)}


def prompt_of(*parts: str | Picture | Sound) -> Prompt:
    found: list[list[int] | Rows] = []
    for part in parts:
        if isinstance(part, str):
            found.append(encode(part))
        else:
            found.append(Rows(part, *MARKS[type(part)]))
    return Prompt.joined(found)


def test_rows_of_media_are_in_their_places(seeing: Seeing) -> None:
    seen, heard = picture(7), sound(4)
    prompt = prompt_of("<bos>Look: ", seen, " and hear ", heard, " well?")
    seeing.engine.prefill(prompt)
    rows = np.concatenate([rows for rows, _, _ in seeing.given])
    assert [each for _, ids, _ in seeing.given for each in ids] == prompt.ids
    assert [each for _, _, kinds in seeing.given for each in kinds] == prompt.modalities()
    assert len(seeing.given) > 1
    text = tvm_ffi.from_dlpack(usable(np.array(prompt.ids, np.int32)))
    runner = seeing.engine.runner
    expected = seeing.engine.device.read(runner.embed(text, runner.params)).copy()
    for run in prompt.runs:
        expected[run.start : run.start + run.count] = expected_rows(run.medium, seeing.width)
    assert (rows == expected).all()


def test_a_medium_that_chunks_cut_is_computed_once(seeing: Seeing) -> None:
    seeing.engine.prefill(prompt_of("<bos>", picture(40), sound(20)))
    assert seeing.towers.calls == ["image", "audio"]


def test_a_picture_that_must_be_whole_is_in_one_chunk(seeing: Seeing) -> None:
    seeing.reset(MediaSettings(SETTINGS.image, SETTINGS.audio, whole_images=True))
    prompt = prompt_of("<bos>a b c d e", picture(12), "f", sound(20))
    seeing.engine.prefill(prompt)
    assert any(kinds.count(abi.MODALITY_MEDIA) == 12 for _, _, kinds in seeing.given)
    seeing.reset(seeing.engine.media)
    with pytest.raises(UsageError, match="13 rows does not fit into a prefill chunk of 12"):
        seeing.engine.prefill(prompt_of("<bos>", picture(13)))
    assert seeing.engine.length == 0


def test_text_alone_is_as_before(seeing: Seeing) -> None:
    ids = encode("<bos>one two three")
    expected = seeing.engine.prefill(ids)
    seeing.engine.clear()
    assert (seeing.engine.prefill(Prompt(ids)) == expected).all()
    assert all(set(kinds) == {abi.MODALITY_TEXT} for _, _, kinds in seeing.given)
    assert not seeing.towers.calls


def test_what_the_library_does_not_take_is_refused(seeing: Seeing) -> None:
    seeing.reset(MediaSettings())
    for medium, words in ((picture(1), "no pictures"), (sound(1), "no sounds")):
        with pytest.raises(UsageError, match=words):
            seeing.engine.prefill(prompt_of("<bos>", medium))
        assert seeing.engine.length == 0


def test_other_rows_than_were_promised_are_an_error(seeing: Seeing) -> None:
    seeing.towers.extra_rows = 1
    with pytest.raises(ArtifactError, match=r"rows of shape \(4, .*expected \(3, "):
        seeing.engine.prefill(prompt_of("<bos>", picture(3)))
    seeing.towers.extra_rows = 0
    seeing.engine.prefill(prompt_of("<bos>", picture(3)))


def answer(generator: Generator, prompt: Prompt) -> tuple[int, list[int]]:
    generation = generator.start(prompt, greedy, max_tokens=4)
    list(generation)
    return generation.reused_tokens, generation.token_ids


def test_a_conversation_keeps_the_media_that_it_shares(seeing: Seeing) -> None:
    generator = Generator(seeing.engine, tiny_tokenizer(), frozenset({106}), SETTINGS)
    begin = ("<bos>Look: ", picture(20), sound(4))
    first = prompt_of(*begin, " what?")
    answer(generator, first)
    longer = prompt_of(*begin, " what else?")
    seeing.towers.calls = []
    reused, said = answer(generator, longer)
    assert reused >= len(prompt_of(*begin))
    assert not seeing.towers.calls
    generator.clear()
    assert answer(generator, longer) == (0, said)


@pytest.mark.parametrize("whole", [False, True])
def test_another_picture_is_another_prompt(seeing: Seeing, whole: bool) -> None:
    settings = MediaSettings(SETTINGS.image, SETTINGS.audio, whole_images=whole)
    seeing.reset(settings)
    generator = Generator(seeing.engine, tiny_tokenizer(), frozenset({106}), settings)
    one, other = (prompt_of("<bos>a", picture(9, seed), "what?") for seed in (1, 2))
    assert one.ids == other.ids
    answer(generator, one)
    reused, said = answer(generator, other)
    assert reused == other.ids.index(1019)
    generator.clear()
    assert answer(generator, other) == (0, said)


def test_a_picture_that_was_cut_short_begins_anew_where_it_must_be_whole(seeing: Seeing) -> None:
    """The last row of a prompt is always run again: it may be of a picture."""
    settings = MediaSettings(SETTINGS.image, whole_images=True)
    seeing.reset(settings)
    generator = Generator(seeing.engine, tiny_tokenizer(), frozenset({106}), settings)
    prompt = prompt_of("<bos>a", picture(9))
    answer(generator, prompt)
    end = prompt.part(0, len(prompt) - 1)  # it ends with the picture's last row
    reused, _ = answer(generator, end)
    assert reused == end.ids.index(1019)


def test_a_chat_about_a_picture(seeing: Seeing) -> None:
    chat = Chat(seeing.engine, seeing.package)
    chat.attach(picture(6))
    list(chat.stream("What is it?", GREEDY, max_tokens=3))
    assert [len(message.media) for message in chat.messages] == [1, 0]
    list(chat.stream("And now?", GREEDY, max_tokens=3))
    assert seeing.towers.calls == ["image"]
    assert chat.last_reply is not None
    assert chat.last_reply.reused_tokens > 6

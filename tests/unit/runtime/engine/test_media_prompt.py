"""Pictures, sounds and videos in prompts, beside transformers' processor."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.media.inputs import Medium, Video
from gemma4_compile.media.settings import ImageSettings, MediaSettings
from gemma4_compile.runtime.engine.media_prompt import Prompt, Run
from gemma4_compile.runtime.prompt.prompt import Message, PromptBuilder
from gemma4_compile.template.chat_template import ChatTemplate
from gemma4_compile.tiny.checkpoint import shipped_file
from tests.media_files import SETTINGS, picture, sound
from tests.scripted_engine import encode, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
TEMPLATE = ChatTemplate(shipped_file("chat_template.jinja").decode(), {"bos_token": "<bos>"})
VIDEO = Video((("00:00", picture(2, seed=1)), ("00:03", picture(2, seed=2))))


def builder(template: ChatTemplate = TEMPLATE, **options: Any) -> PromptBuilder:
    return PromptBuilder(TOKENIZER, template, **{"media": SETTINGS, **options})


def user(*parts: str | Medium) -> Message:
    return Message.of_parts("user", parts)


def text_of(prompt: list[int]) -> str:
    return str(TOKENIZER.decode(prompt, skip_special_tokens=False))


def processed(media: list[Medium]) -> list[str]:
    """What transformers' processor puts in the places of media."""
    from transformers.models.gemma4.processing_gemma4 import Gemma4Processor

    marks: Any = SimpleNamespace(
        boi_token="<|image>",
        image_token="<|image|>",
        eoi_token="<image|>",
        video_token="<|video|>",
        boa_token="<|audio>",
        audio_token="<|audio|>",
        eoa_token="<audio|>",
    )
    texts = []
    for medium in media:
        if isinstance(medium, Video):
            metadata = SimpleNamespace(fps=24.0, timestamps=[0.0, 3.5])
            given: dict[str, Any] = {
                "num_soft_tokens_per_video": [medium.frames[0][1].rows],
                "video_metadata": [metadata],
            }
            texts.append(Gemma4Processor.replace_video_token(marks, given, 0))
        elif medium.digest == sound(3).digest:
            mask = np.ones(4 * medium.rows, bool)
            given = {"input_features_mask": [mask]}
            texts.append(Gemma4Processor.replace_audio_token(marks, given, 0))
        else:
            given = {"num_soft_tokens_per_image": [medium.rows]}
            texts.append(Gemma4Processor.replace_image_token(marks, given, 0))
    return texts


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
@pytest.mark.parametrize(
    "parts",
    [
        (picture(5), "What is it?"),
        ("Look:", picture(1), "and", picture(2, seed=3), "hear", sound(3)),
        (VIDEO,),
        ("Tell me", VIDEO, "and", picture(4)),
        (sound(3),),
    ],
)
def test_ids_are_those_of_the_processor(parts: tuple[str | Medium, ...]) -> None:
    media = [part for part in parts if not isinstance(part, str)]
    rendered = TEMPLATE.render([user(*parts)])
    for kind, text in zip(
        [
            f"<|{part['type']}|>"
            for part in user(*parts).for_template()["content"]
            if part["type"] != "text"
        ],
        processed(media),
        strict=True,
    ):
        rendered = rendered.replace(kind, text.replace("<|", "\0"), 1)
    assert builder().build([user(*parts)]).ids == encode(rendered.replace("\0", "<|"))


def test_runs_are_where_the_rows_are() -> None:
    one, heard = picture(5), sound(3)
    prompt = builder().build([user("Look:", one, heard, VIDEO)])
    soft = {one.digest: 1019, heard.digest: 1020}
    assert [run.medium.rows for run in prompt.runs] == [5, 3, 2, 2]
    for run in prompt.runs:
        end = run.start + run.count
        assert set(prompt.ids[run.start : end]) == {soft.get(run.medium.digest, 1023)}
        assert (prompt.ids[run.start - 1], prompt.ids[end]) in (
            (1017, 1021),
            (1018, 1022),
        )
    modalities = prompt.modalities()
    assert modalities.count(abi.MODALITY_MEDIA) == 9
    assert modalities.count(abi.MODALITY_AUDIO) == 3


def test_media_of_several_turns_keep_their_order() -> None:
    reply = Message("assistant", "A cat.", tuple(encode("A cat.")))
    prompt = builder().build([user(picture(2), "a"), reply, user("b", picture(3, seed=1))])
    assert [run.count for run in prompt.runs] == [2, 3]
    alone = builder().build([user(picture(2), "a")])
    assert prompt.part(0, len(alone)).keys() == alone.keys()


@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("mark", ["<|image|>", "<|audio|>", "<|video|>"])
def test_a_placeholder_that_somebody_wrote_is_text(mark: str, literal: bool) -> None:
    build = builder(literal_specials=literal).build
    for messages in (
        [user(f"What does {mark} mean?")],
        [user(picture(2), f"What does {mark} mean?")],
        [Message("system", f"Say {mark}."), user(f"{mark}", picture(2), mark)],
        [user("Hi"), Message("assistant", mark, tuple(encode("ok"))), user(picture(2), "b")],
        [user("Hi"), Message("assistant", mark), user(picture(2), "b")],
    ):
        media = [medium for message in messages for medium in message.media]
        prompt = build(messages)
        assert len(prompt.runs) == len(media)
        rows = sum(run.count for run in prompt.runs)
        assert sum(token in (1019, 1020, 1023) for token in prompt.ids) == rows
    assert mark in text_of(build([user(f"What does {mark} mean?")]).ids)


def test_a_reply_that_the_template_rewrites_takes_no_mediums_place() -> None:
    rewriting = ChatTemplate(
        "{% for m in messages %}{% if m.content is string %}{{ m.content | replace('\ue000', '') }}"
        "{% else %}{% for p in m.content %}{{ p.text or '<|' + p.type + '|>' }}"
        "{% endfor %}{% endif %}{% endfor %}",
        {},
    )
    told = Message("assistant", "x <|image|>", tuple(encode("x")))
    prompt = builder(rewriting).build([user("Hi"), told, user(picture(2))])
    assert [run.count for run in prompt.runs] == [2]


def test_a_template_without_places_is_refused() -> None:
    blind = ChatTemplate("{% for m in messages %}{{ m.role }}: text\n{% endfor %}", {})
    with pytest.raises(UsageError, match=r"no place.* expected image, audio, found nothing"):
        builder(blind).build([user(picture(1), sound(1))])
    inventing = ChatTemplate("<|image|>{{ messages[0].content }}", {})
    with pytest.raises(UsageError, match="expected nothing, found image"):
        builder(inventing).build([user("Hi")])


@pytest.mark.parametrize(
    ("medium", "settings", "words"),
    [
        (picture(1), MediaSettings(None, SETTINGS.audio), "takes no pictures"),
        (VIDEO, MediaSettings(None, SETTINGS.audio), "takes no videos"),
        (sound(1), MediaSettings(SETTINGS.image), "takes no sounds"),
        (sound(1), None, "takes no sounds"),
    ],
)
def test_what_the_package_does_not_take_is_refused(
    medium: Medium, settings: MediaSettings | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        builder(media=settings).build([user(medium)])
    assert "--modalities" in (caught.value.hint or "")


def test_without_media_prompts_are_as_before() -> None:
    told = [
        Message("user", "Hi <|turn> <|image|>"),
        Message("assistant", "a"),
        Message("user", "b"),
    ]
    assert builder(media=None).build(told).ids == encode(TEMPLATE.render(told))
    said = [Message("user", "Hi <|turn>")]
    assert builder().build(said).ids == encode(TEMPLATE.render(said))


def test_a_tokenizer_without_the_tokens_is_refused() -> None:
    with pytest.raises(ArtifactError, match="no token 5000"):
        builder(media=MediaSettings(ImageSettings(1, 5000, 2, 3)))


def test_parts_of_prompts_hold_parts_of_runs() -> None:
    medium = picture(4)
    prompt = Prompt(list(range(10)), (Run(3, 4, medium),))
    assert prompt.part(0, 3).runs == ()
    assert prompt.part(0, 5).runs == (Run(3, 2, medium),)
    assert prompt.part(5, 10).runs == (Run(0, 2, medium, 2),)
    assert prompt.part(5, 6).ids == [5]
    keys = prompt.keys()
    assert prompt.part(0, 5).keys() + prompt.part(5, 10).keys() == keys
    assert keys[:3] + keys[7:] == [0, 1, 2, 7, 8, 9]
    assert len(set(keys)) == 10
    same, other = (replace(prompt, runs=(Run(3, 4, picture(4, seed=n)),)) for n in (0, 1))
    assert same.keys() == keys
    assert prompt.keys() is keys, "made once"
    assert prompt.modalities() is prompt.modalities()
    assert other.keys()[3] != keys[3]

"""Pictures and sounds over the API: what comes with a request, and what is wrong with it."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image

from gemma4_compile.media.inputs import Sound
from gemma4_compile.media.settings import MediaSettings
from gemma4_compile.runtime.server import media as server_media
from gemma4_compile.runtime.server.body import Limits
from gemma4_compile.tiny.checkpoint import shipped_file
from tests.live_server import LOCAL, PATIENCE_S, Live, serving_script
from tests.media_files import (
    SETTINGS,
    picture_file,
    recording,
    saved,
    sound,
    sound_file,
    tone,
    wav_header,
)
from tests.scripted_engine import ScriptedEngine, encode

TEMPLATE = shipped_file("chat_template.jinja").decode()
SMALL = MediaSettings(SETTINGS.image, SETTINGS.audio)


def data_url(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def image(content: bytes | str, **more: Any) -> dict[str, Any]:
    url = content if isinstance(content, str) else data_url(content)
    return {"type": "image_url", "image_url": {"url": url, **more}}


def audio(content: bytes | str, form: str = "wav") -> dict[str, Any]:
    text = content if isinstance(content, str) else base64.b64encode(content).decode()
    return {"type": "input_audio", "input_audio": {"data": text, "format": form}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(encode("A cat."), context_length=512)


@pytest.fixture(scope="module")
def live(engine: ScriptedEngine) -> Iterator[Live]:
    limits = Limits(body_bytes=8 << 20)
    with serving_script(engine, TEMPLATE, limits=limits, media=SMALL) as live:
        yield live


def ask(live: Live, *parts: dict[str, Any], role: str = "user") -> tuple[int, dict[str, Any]]:
    body = {"messages": [{"role": role, "content": list(parts)}]}
    status, _, answer = live.request("POST", "/v1/chat/completions", body)
    return status, json.loads(answer)


def test_a_picture_and_a_question(live: Live, engine: ScriptedEngine) -> None:
    client = live.client()
    content: Any = [text("What is this?"), image(picture_file(48, 96))]
    answer = client.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": content}]
    )
    assert answer.choices[0].message.content == "A cat."
    rows = engine.held.count(1019)
    assert rows == 23 * 11  # 1104 x 528: the processor's size at a budget of 280
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > rows
    begin = engine.held.index(1017)
    assert engine.held[begin + 1 + rows] == 1021


def test_several_pictures_and_sounds_in_their_order(live: Live, engine: ScriptedEngine) -> None:
    parts = (
        image(picture_file(48, 48), detail="low"),
        text("and"),
        audio(sound_file(tone(0.2))),
        audio(sound_file(tone(0.4), form="FLAC"), "flac"),
        audio(sound_file(tone(0.3), form="MP3"), "mp3"),
        image(picture_file(48, 144, seed=2), detail="low"),
    )
    status, answer = ask(live, *parts)
    assert status == 200, answer
    held = engine.held
    starts = [token for token in held if token in (1017, 1018)]
    assert starts == [1017, 1018, 1018, 1018, 1017]
    assert held.count(1020) >= 5 + 10 + 7
    assert held.count(1019) == 8 * 8 + 14 * 4


SOUNDS = {
    "wav": sound_file(tone(0.2)),
    "flac": sound_file(tone(0.2), form="FLAC"),
    "mp3": sound_file(tone(0.2), form="MP3"),
    "ogg": sound_file(tone(0.2), form="OGG", subtype="VORBIS"),
    "opus": sound_file(tone(0.2), form="OGG", subtype="OPUS"),
    "aiff": sound_file(tone(0.2), form="AIFF"),
    "m4a": recording("ipod", "aac", tone(0.2), 16_000),
    "aac": recording("adts", "aac", tone(0.2), 16_000),
    "webm": recording("webm", "libopus", tone(0.2, 48_000)),
}


@pytest.mark.parametrize("kind", SOUNDS)
def test_a_sound_is_what_its_bytes_are(live: Live, engine: ScriptedEngine, kind: str) -> None:
    """Whatever its label says, or where it says nothing."""
    others: tuple[object, ...] = ("audio/x-unknown", "PCM16", "", None, 3)
    rows = set()
    for label in (kind, kind.upper(), f"audio/{kind}", "wav", *others):
        part = audio(SOUNDS[kind])
        part["input_audio"]["format"] = label
        status, answer = ask(live, part)
        assert status == 200, (label, answer)
        rows.add(engine.held.count(1020))
    del part["input_audio"]["format"]
    assert ask(live, part)[0] == 200
    assert len(rows) == 1
    assert 5 <= rows.pop() <= 8  # 40 ms each, and of AAC a frame before and after


def test_a_sound_may_be_a_data_address(live: Live) -> None:
    plain = base64.b64encode(SOUNDS["webm"]).decode()
    escaped = plain.replace("+", "%2B").replace("/", "%2f").replace("=", "%3D")
    for text in (
        data_url(SOUNDS["webm"], "audio/webm"),
        data_url(SOUNDS["webm"], "audio/webm;codecs=opus"),  # as MediaRecorder names it
        data_url(SOUNDS["webm"], "audio/webm; codecs=opus").replace("data:", "DATA:"),
        f"data:;base64,{escaped}",
        base64.urlsafe_b64encode(SOUNDS["webm"]).decode().rstrip("="),
    ):
        status, answer = ask(live, audio(text))
        assert status == 200, answer


def test_a_picture_may_be_base64_alone(live: Live, engine: ScriptedEngine) -> None:
    """As transformers' loader takes it."""
    rows = set()
    for content in (picture_file(48, 96), saved(Image.new("RGB", (96, 48)), "JPEG")):
        for text in (data_url(content), base64.b64encode(content).decode()):
            status, answer = ask(live, image(text))
            assert status == 200, answer
            rows.add(engine.held.count(1019))
    assert len(rows) == 1


def test_base64_in_lines(live: Live) -> None:
    """As `base64 FILE` prints it."""
    picture = base64.encodebytes(picture_file(48, 48)).decode()
    sound = base64.encodebytes(sound_file(tone(0.2))).decode().replace("\n", "\r\n")
    assert "\n" in picture[:-1]
    status, answer = ask(live, image(f"data:image/png;base64,{picture}"), audio(sound))
    assert status == 200, answer


@pytest.mark.parametrize(
    ("detail", "most"), [("low", 70), ("auto", 280), ("high", 1120), (None, 280)]
)
def test_detail_is_a_budget_that_the_package_has(detail: str | None, most: int) -> None:
    assert SETTINGS.image is not None
    roomy = MediaSettings(replace(SETTINGS.image, max_budget=1120))
    engine = ScriptedEngine(encode("A cat."), context_length=2048)
    more = {} if detail is None else {"detail": detail}
    with serving_script(engine, TEMPLATE, limits=Limits(body_bytes=8 << 20), media=roomy) as live:
        status, answer = ask(live, image(picture_file(64, 48), **more))
    assert status == 200, answer
    assert 0.8 * most < engine.held.count(1019) <= most


def test_earlier_pictures_are_kept_and_not_decoded_again(
    live: Live, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {"role": "user", "content": [image(picture_file(48, 48, seed=7)), text("What?")]}
    messages = [first]
    status, _, _ = live.request("POST", "/v1/chat/completions", {"messages": messages})
    assert status == 200
    held = len(engine.held)

    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(server_media, "load", never)
    steps: list[int] = []
    engine.before_step = lambda: steps.append(len(engine.held))
    messages += [{"role": "assistant", "content": "A cat."}, {"role": "user", "content": "Sure?"}]
    status, _, answer = live.request("POST", "/v1/chat/completions", {"messages": messages})
    engine.before_step = lambda: None
    assert status == 200, answer
    assert steps[0] >= held - len(engine.reply) - 1


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no url": ({"type": "image_url", "image_url": {}}, "`messages[0].content[0].image_url.url`"),
    "a number": ({"type": "image_url", "image_url": 3}, "expected an object"),
    "unknown detail": (image(b"x", detail="best"), "expected one of auto, low, high"),
    "asking field": ({**image(b"x"), "max_pixels": 3}, "is said by `detail`"),
    "no base64": (image("data:image/png;base64,@@@@"), "expected base64"),
    "padding": (image("data:image/png;base64,abcde"), "expected base64"),
    "plain data": (image("data:image/png,abc"), "expected `data:image/png;base64"),
    "a path": (image("file:///etc/passwd"), "expected `data:image/png;base64"),
    "a bare path": (image("/etc/passwd"), "expected `data:image/png;base64"),
    "a bare sound": (image(base64.b64encode(sound_file()).decode()), "expected `data:image/png"),
    "a path of a network": (image("//host/a.png"), "expected `data:image/png;base64"),
    "an address": (image("https://example.org/a.png"), "--allow-media-hosts"),
    "in capitals": (image("HTTP://example.org/a.png"), "--allow-media-hosts"),
    "an empty picture": (image(b""), "empty"),
    "no picture": (image(b"hello"), "no picture that is read here"),
    "cut": (image(picture_file(50, 50)[:500]), "damaged"),
    "a sound as a picture": (image(sound_file()), "it is WAV; give it as a sound: --audio, or"),
    "a picture as a sound": (audio(picture_file()), "it is PNG"),
    "no sound": (audio(b""), "empty"),
    "zero length": (audio(wav_header(0)), "no samples"),
    "too short": (audio(sound_file(tone(0.005))), "expected at least"),
    "too long": (audio(sound_file(tone(31), rate=16_000, form="FLAC"), "flac"), "at most 30 s"),
    "a sound by address": (audio("https://example.org/a.wav"), "sounds are not fetched"),
    "plain sound": (audio("data:audio/wav,abc"), "expected base64, alone or as `data:audio/wav"),
    "no data": ({"type": "input_audio", "input_audio": {"format": "wav"}}, "data`: is missing"),
    "other letters": (audio("data:audio/wav;base64,é%2b"), "expected base64"),
    "a video": ({"type": "video_url", "video_url": {"url": "x"}}, "text, image_url or input_audio"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_media_are_answered_with_what_is_wrong(live: Live, name: str) -> None:
    part, message = BAD[name]
    status, answer = ask(live, part)
    assert status == 400, answer
    error = answer["error"]
    assert message in error["message"]
    assert error["param"].startswith("messages[0].content[0]")
    assert len(error["message"]) < 1000


def test_only_users_show_and_not_without_end(live: Live) -> None:
    status, answer = ask(live, image(picture_file()), role="assistant")
    assert (status, "only a user's message" in answer["error"]["message"]) == (400, True)
    status, answer = ask(live, *[image(b"x")] * 65)
    assert (status, "at most 64" in answer["error"]["message"]) == (400, True)
    status, answer = ask(live, *[image("http://a.example/")] * 9)
    assert (status, "at most 8" in answer["error"]["message"]) == (400, True)


def test_a_tool_s_result_shows_where_the_template_has_a_place(live: Live) -> None:
    call = {"id": "c", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [text("Here:"), image(picture_file())]},
    ]
    status, _, answer = live.request("POST", "/v1/chat/completions", {"messages": messages})
    assert status == 200, answer


def test_what_does_not_fit_is_refused(live: Live) -> None:
    pictures = [image(picture_file(48, 48, seed=seed)) for seed in range(3)]
    status, answer = ask(live, *pictures)
    assert status == 400
    assert answer["error"]["code"] == "context_length_exceeded"


def test_a_picture_that_must_be_whole_and_is_too_long_for_a_chunk_is_refused() -> None:
    whole = MediaSettings(SETTINGS.image, whole_images=True)
    engine = ScriptedEngine(encode("x"))
    with serving_script(engine, TEMPLATE, media=whole) as live:
        status, answer = ask(live, image(picture_file()), text("What?"))
    assert status == 400
    assert "does not fit into a prefill chunk of 16" in answer["error"]["message"]
    assert "--prefill-chunk" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("settings", "part", "words"),
    [
        (MediaSettings(), image(b"x"), "takes no pictures"),
        (MediaSettings(), audio(b"x"), "takes no sounds"),
        (MediaSettings(SETTINGS.image), audio(b"x"), "--modalities text,audio"),
        (MediaSettings(None, SETTINGS.audio), image(b"x"), "--modalities text,image"),
    ],
)
def test_what_the_package_does_not_take_is_refused(
    settings: MediaSettings, part: dict[str, Any], words: str
) -> None:
    with serving_script(ScriptedEngine([]), TEMPLATE, media=settings) as live:
        status, answer = ask(live, part)
    assert status == 400
    assert words in answer["error"]["message"]


def test_a_long_body_is_taken_where_there_may_be_pictures(live: Live) -> None:
    """Of text, so many bytes could not be a prompt for this context."""
    status, answer = ask(live, image(picture_file(900, 900)), text("What?"))
    assert status == 200, answer


def test_a_picture_for_a_package_of_text_is_no_long_prompt() -> None:
    """Its body is not parsed, so that nothing else tells what a package of text does not take."""
    with serving_script(ScriptedEngine([]), TEMPLATE) as live:
        status, answer = ask(live, image(bytes(3 << 20)))
    assert status == 400
    assert "takes no pictures and no sounds" in answer["error"]["message"]


def test_a_client_that_writes_a_long_body_to_its_end_hears_that_it_is_too_long(live: Live) -> None:
    """As http.client does: a connection that is closed meanwhile would be reset."""
    status, answer = ask(live, image(bytes(18 << 20)))  # 24 MiB of base64, where 8 are taken
    assert (status, answer["error"]["code"]) == (413, "body_too_large")
    assert "longer than 8388608 bytes" in answer["error"]["message"]


def test_other_requests_are_answered_while_a_picture_is_decoded(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(*arguments: object, **options: object) -> None:
        begun.set()
        go_on.wait(PATIENCE_S)
        raise AssertionError("never mind")

    monkeypatch.setattr(server_media, "load", slow)
    thread = threading.Thread(target=ask, args=(live, image(b"slow")))
    thread.start()
    try:
        assert begun.wait(PATIENCE_S)
        assert live.request("GET", "/v1/models")[0] == 200
        assert ask(live, text("Hi"))[0] == 200
        assert thread.is_alive()
    finally:
        go_on.set()
        thread.join()


def test_nothing_more_is_decoded_for_a_client_that_has_gone(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, decoded = threading.Event(), threading.Event(), []

    def slow(kind: str, source: bytes, *arguments: object, **options: object) -> Sound:
        decoded.append(source)
        begun.set()
        go_on.wait(PATIENCE_S)
        return sound(1)

    monkeypatch.setattr(server_media, "load", slow)
    parts = [audio(b"first"), audio(b"second"), audio(b"third")]
    body = json.dumps({"messages": [{"role": "user", "content": parts}]}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((LOCAL, live.port)) as client:
        client.sendall(head.encode() + body)
        assert begun.wait(PATIENCE_S)
    time.sleep(0.3)  # until the server knows
    go_on.set()
    assert ask(live, audio(b"of another client"))[0] == 200
    assert decoded == [b"first", b"of another client"]


def test_pictures_are_fetched_from_named_hosts(live: Live) -> None:
    """Another server of this kind is the host: what it answers is no picture."""
    host = f"{LOCAL}:{live.port}"
    with serving_script(
        ScriptedEngine(encode("x")), TEMPLATE, media=SMALL, media_hosts=[host]
    ) as fetching:
        status, answer = ask(fetching, image(f"http://{host}/v1/models"))
        assert status == 400
        assert "no picture that is read here" in answer["error"]["message"]
        status, answer = ask(fetching, image(f"http://{host}/nowhere"))
        assert status == 400
        assert "status 404" in answer["error"]["message"]
        assert answer["error"]["code"] == "media_not_fetched"
        status, answer = ask(fetching, image("http://192.168.0.1/a.png"))
        assert status == 400
        assert "not among the hosts" in answer["error"]["message"]

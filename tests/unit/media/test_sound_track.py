"""Sounds of phones, browsers and videos, beside the same sound as samples."""

from __future__ import annotations

import contextlib
import io
import re
import struct

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from gemma4_compile.errors import MediaError
from gemma4_compile.media import sound
from gemma4_compile.media.decode import decode_audio, decode_video
from tests.media_files import recording, sound_file, tone

SAMPLES = npt.NDArray[np.float32]
EXPECTED = tone(2) * (1 + 0.75) / 2  # the mean of the two channels of `tone`
INNER = slice(4000, -4000)  # a codec bends the ends


@pytest.mark.parametrize(
    ("form", "codec", "most"),
    [
        ("ipod", "aac", 0.03),  # Voice Memos
        ("ipod", "alac", 1e-3),
        ("mp4", "aac", 0.03),
        pytest.param("mov", "aac", 0.03, marks=pytest.mark.slow),
        ("mov", "pcm_s16le", 1e-3),
        pytest.param("mov", "pcm_s16be", 1e-3, marks=pytest.mark.slow),
        pytest.param("mov", "pcm_u8", 0.01, marks=pytest.mark.slow),
        pytest.param("mov", "pcm_s24le", 1e-3, marks=pytest.mark.slow),
        ("mov", "pcm_f32le", 1e-3),
        ("webm", "libopus", 0.02),  # MediaRecorder of Chromium and Firefox
        pytest.param("mp4", "libopus", 0.02, marks=pytest.mark.slow),
        ("matroska", "aac", 0.03),
        ("ogg", "flac", 1e-3),
        ("mp4", "ac3", 0.01),
        pytest.param("caf", "alac", 1e-3, marks=pytest.mark.slow),
    ],
)
def test_a_recording_is_the_sound_that_was_recorded(form: str, codec: str, most: float) -> None:
    """Where it began, too: what an encoder puts before it is left out."""
    rate = 44_100 if codec == "aac" else 48_000  # FFmpeg's encoder is not at its best beyond
    found = decode_audio(recording(form, codec, tone(2, rate, channels=2), rate))
    assert 32_000 <= len(found) < 32_000 + 400  # a frame's rest
    assert np.abs(found[:32_000][INNER] - EXPECTED[INNER]).max() < most


@pytest.mark.parametrize(
    ("form", "options"),
    [("adts", {}), ("mpegts", {}), ("mp4", {"movflags": "frag_keyframe+empty_moov"})],
)
def test_a_recording_that_does_not_say_where_it_begins_is_whole(
    form: str, options: dict[str, str]
) -> None:
    found = decode_audio(recording(form, "aac", tone(2), 16_000, options=options))
    begin = 1024  # of AAC's encoder, which every program then hears
    assert np.abs(found[begin:][:32_000][INNER] - tone(2)[INNER]).max() < 0.03


def test_a_telephones_recording_is_heard() -> None:
    wave = tone(2, 8000)
    for form in ("amr", "3gp"):
        found = decode_audio(recording(form, "libopencore_amrnb", wave, 8000))
        assert 32_000 <= len(found) < 33_000
        loudness = np.abs(np.fft.rfft(found[8000:24_000]))
        assert loudness.argmax() == 440


def test_rates_and_channels_are_those_of_the_recording() -> None:
    for rate in (16_000, 22_050, 44_100):
        found = decode_audio(recording("ipod", "aac", tone(2, rate), rate))
        assert np.abs(found[:32_000][INNER] - tone(2)[INNER]).max() < 0.05


def test_the_sound_of_a_video_is_heard_where_it_is_asked_for() -> None:
    film = recording("mp4", "aac", tone(2, 44_100, channels=2), 44_100, pictures=24)
    assert np.abs(decode_audio(film)[:32_000][INNER] - EXPECTED[INNER]).max() < 0.03
    assert len(decode_video(film)) == 24


@pytest.mark.slow
def test_a_sound_is_not_refused_for_its_tags() -> None:
    for form in ("ipod", "matroska"):
        content = recording(form, "aac", tags="Приёмная".encode("cp1251"), pictures=4)
        assert "Приёмная".encode("cp1251") in content
        assert len(decode_audio(content)) >= 32_000
        assert len(decode_video(content)) == 4


def test_an_mp3_in_a_wav_is_heard_although_it_counts_other_samples() -> None:
    content = recording("wav", "libmp3lame")
    assert content[:4] == b"RIFF"
    assert len(decode_audio(content)) == pytest.approx(32_000, abs=1500)


def test_the_cover_of_a_sound_is_no_video() -> None:
    content = recording("mp4", "aac", cover=True)
    assert b"covr" in content
    assert len(decode_audio(content)) >= 32_000
    with pytest.raises(MediaError, match="no pictures, only sound"):
        decode_video(content)


def test_a_track_whose_codec_is_not_known_is_passed_over() -> None:
    """As phones write spatial sound beside what everybody plays."""
    whole = recording("mov", "pcm_s16le", tone(2, 48_000, channels=2), tracks=2)
    first, second = (at.start() for at in re.finditer(b"sowt", whole))
    for at in (first, second):
        found = decode_audio(whole[:at] + b"apac" + whole[at + 4 :])
        assert np.abs(found[INNER] - EXPECTED[INNER]).max() < 1e-3
    with pytest.raises(MediaError, match="codec is not known here"):
        decode_audio(whole.replace(b"sowt", b"zzzz"))


def test_damaged_recordings_are_errors_or_sounds() -> None:
    rng = np.random.default_rng(3)
    for form, codec in (("ipod", "aac"), ("webm", "libopus"), ("adts", "aac")):
        content = recording(form, codec, tone(0.5, 48_000))
        for trial in range(60):
            changed = bytearray(content)
            for _ in range(1 + trial % 5):
                changed[rng.integers(12, len(changed))] = rng.integers(256)
            with contextlib.suppress(MediaError):
                sound.decode(io.BytesIO(bytes(changed)), {})


@pytest.mark.slow
def test_limits_are_those_of_other_sounds() -> None:
    assert len(decode_audio(recording("ipod", "aac", tone(30, 16_000), 16_000))) == 480_000
    for form, codec in (("ipod", "aac"), ("webm", "libopus"), ("adts", "aac")):
        with pytest.raises(MediaError, match="more than 30 s; expected at most 30 s"):
            decode_audio(recording(form, codec, tone(31, 48_000)))
    with pytest.raises(MediaError, match="magnitude 30000"):
        decode_audio(recording("mov", "pcm_f32le", np.full(4800, 3e4, np.float32)))


@pytest.mark.slow
def test_a_recording_that_was_cut_is_refused() -> None:
    content = recording("ipod", "aac", tone(10, 16_000), 16_000, options={"moov_size": "20000"})
    assert content.index(b"moov") < content.index(b"mdat")
    with pytest.raises(MediaError, match="damaged") as caught:
        decode_audio(content[: len(content) * 2 // 3])
    assert caught.value.hint
    for form in ("ipod", "webm", "adts", "amr"):
        with pytest.raises(MediaError, match=r"damaged|no sound|no samples"):
            decode_audio(recording(form, *CODECS[form])[:60])


CODECS: dict[str, tuple[str, SAMPLES, int]] = {
    "ipod": ("aac", tone(1, 16_000), 16_000),
    "webm": ("libopus", tone(1, 48_000), 48_000),
    "adts": ("aac", tone(1, 16_000), 16_000),
    "amr": ("libopencore_amrnb", tone(1, 8000), 8000),
}


def test_of_a_recording_that_is_cut_by_its_edit_list_the_part_that_is_heard_counts() -> None:
    """As Voice Memos and Photos cut it: the rest stays in the file."""
    wave = np.concatenate([np.zeros(32_000, np.float32), tone(2), np.zeros(32_000, np.float32)])
    content = bytearray(recording("ipod", "aac", wave, 16_000))
    begin = content.index(b"elst") + 12
    struct.pack_into(">II", content, begin, 2000, 32_000 + 1024)  # milliseconds, samples
    found = decode_audio(bytes(content))
    assert len(found) == pytest.approx(32_000, abs=1100)
    assert np.abs(found[:28_000][INNER] - tone(2)[:28_000][INNER]).max() < 0.05


def test_files_without_sound_and_kinds_that_nothing_reads_say_what_to_do() -> None:
    content = recording("wv", "wavpack")
    with pytest.raises(MediaError, match="no sound that is read here") as caught:
        decode_audio(content)
    assert caught.value.hint == "give a WAV, FLAC, MP3, Ogg, M4A, AAC or WebM file"


def test_usual_sounds_need_no_pyav() -> None:
    """It is the largest part of the extra, and the one with the most codecs."""
    assert "av" not in vars(sound)
    assert soundfile.SoundFile
    assert len(decode_audio(sound_file())) == 16_000

"""Decoding, in a process of its own, of files that are as they should be, and of hostile ones."""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gemma4_compile.confined import limits
from gemma4_compile.errors import MediaError, UsageError
from gemma4_compile.media import decode
from gemma4_compile.media.decode import (
    check_readable,
    decode_audio,
    decode_image,
    decode_video,
)
from tests.media_files import (
    noise,
    picture_file,
    png,
    quarters,
    saved,
    sound_file,
    tone,
    video_file,
    wav_header,
)


def processor_seconds() -> float:
    """Of this process and its children: waits for other processes do not count."""
    return sum(os.times()[:4])


def refused(read: Callable[[], object], words: str, seconds: float = 10) -> MediaError:
    """The error of a file that is refused, in bounded time of the processor."""
    begin = processor_seconds()
    with pytest.raises(MediaError, match=words) as caught:
        read()
    assert processor_seconds() - begin < seconds
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("form", ["PNG", "WEBP", "BMP", "TIFF", "GIF", "JPEG"])
def test_a_picture_is_decoded(form: str, tmp_path: Path) -> None:
    rgb = np.full((20, 30, 3), 100, np.uint8)
    lossless = {"lossless": True} if form == "WEBP" else {}
    content = saved(Image.fromarray(rgb), form, **lossless)
    assert np.abs(decode_image(content).astype(int) - rgb).max() <= (3 if form == "JPEG" else 0)
    path = tmp_path / "picture"
    path.write_bytes(content)
    assert (decode_image(path) == decode_image(content)).all()


def test_a_picture_is_upright_as_its_camera_was() -> None:
    image = Image.fromarray(noise(20, 30))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    turned = decode_image(saved(image, "PNG", exif=exif))
    assert (turned == np.rot90(noise(20, 30), -1)).all()


def test_what_is_transparent_is_white() -> None:
    rgba = np.dstack([noise(5, 7), np.zeros((5, 7), np.uint8)])
    rgba[2, 3, 3] = 255
    rgb = decode_image(saved(Image.fromarray(rgba)))
    assert (rgb[2, 3] == rgba[2, 3, :3]).all()
    assert (np.delete(rgb.reshape(-1, 3), 2 * 7 + 3, axis=0) == 255).all()
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    rgb = decode_image(saved(palette, "PNG", transparency=0))
    assert rgb.tolist() == [[[255, 255, 255], [40, 50, 60]]]


@pytest.mark.parametrize(("depth", "shade", "level"), [(2, 1, 85), (4, 9, 153), (16, 40_000, 156)])
def test_a_transparent_shade_is_one_of_the_pictures_own_bits(
    depth: int, shade: int, level: int
) -> None:
    line = b"\0" + (shade << 32 - depth).to_bytes(4, "big")  # the other pixels are black
    for clear, wanted in ((shade, [255, 0]), (0, [level, 255])):
        content = png(2, 1, zlib.compress(line), depth=depth, clear=clear.to_bytes(2, "big"))
        assert decode_image(content)[0, :, 0].tolist() == wanted
    if depth == 16:
        line = b"\0" + struct.pack(">6H", *[shade] * 3, *[0] * 3)
        content = png(2, 1, zlib.compress(line), depth=16, colours=2, clear=line[1:7])
        assert decode_image(content)[0, :, 0].tolist() == [255, 0]


def test_tall_transparent_pictures_are_whole() -> None:
    """They are made opaque a strip at a time."""
    rgba = np.dstack([noise(2050, 3), np.full((2050, 3), 255, np.uint8)])
    assert (decode_image(saved(Image.fromarray(rgba))) == rgba[..., :3]).all()


def big_endian_tiff(shades: Image.Image) -> bytes:
    """As microscopes and ImageJ write it; Pillow writes TIFF in this machine's order alone."""
    pixels = np.asarray(shades).astype(">u2").tobytes()
    # Width, height, bits, no compression, black is 0, where the pixels begin, rows of them, bytes.
    tags = {256: shades.width, 257: shades.height, 258: 16, 259: 1, 262: 1, 273: 110}
    tags |= {278: shades.height, 279: len(pixels)}
    entries = b"".join(struct.pack(">HHII", tag, 4, 1, value) for tag, value in tags.items())
    head = struct.pack(">2sHIH", b"MM", 42, 8, len(tags)) + entries + bytes(4)
    return head + pixels


def test_shades_of_16_bits_keep_their_brightness() -> None:
    shades = Image.fromarray(np.array([[0, 257, 32_768, 65_535]], np.uint16))
    for content in (saved(shades, "PNG"), saved(shades, "TIFF"), big_endian_tiff(shades)):
        assert decode_image(content)[0, :, 0].tolist() == [0, 1, 128, 255]


def test_of_an_animation_the_first_frame_counts() -> None:
    frames = [Image.new("RGB", (8, 8), (shade, 0, 0)) for shade in (200, 10)]
    for form, more in (("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {})):
        content = saved(frames[0], form, save_all=True, append_images=frames[1:], **more)
        assert decode_image(content)[0, 0].tolist() == [200, 0, 0]


def test_a_picture_is_scaled_where_it_is_decoded() -> None:
    assert decode_image(picture_file(480, 640), (280, 48)).shape == (672, 912, 3)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"not a picture at all", "no picture that is read here"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no picture"),
        (b"\x00\x00\x00\x18ftypheic" + bytes(40), "HEIC"),
        (picture_file()[:200], "damaged"),
        (png(60_000, 60_000, zlib.compress(bytes(100))), "60000 x 60000"),
        (png(65_000, 1, zlib.compress(bytes(65_001))), "65000 x 1 .* at most 32768"),
        (png(8_000, 9_000, zlib.compress(bytes(100))), "at most 67108864"),
        (png(0, 10, zlib.compress(b"")), "damaged|nothing to see|no picture"),
        (png(1_000, 1_000, zlib.compress(bytes(100))), "damaged"),
        (png(4, 4, b"no deflate"), "damaged"),
        (b"BM" + bytes(60), "damaged|no picture"),
    ],
)
def test_hostile_pictures_are_refused(content: bytes, words: str) -> None:
    refused(lambda: decode_image(content), words)


def test_a_bomb_of_many_pixels_is_refused_by_its_header() -> None:
    bomb = png(30_000, 30_000, zlib.compress(bytes(30_001 * 3_000), 9), depth=8)
    assert len(bomb) < 200_000
    refused(lambda: decode_image(bomb), "at most 67108864", seconds=5)


@pytest.mark.slow
def test_a_bomb_in_metadata_takes_no_memory() -> None:
    """A compressed text and a colour profile that would take gigabytes."""
    whole = picture_file()
    bomb = zlib.compress(bytes(1 << 28), 9)
    for kind, begin in ((b"zTXt", b"x\0\0"), (b"iCCP", b"x\0\0")):
        content = begin + bomb
        check = zlib.crc32(kind + content).to_bytes(4, "big")
        chunk = len(content).to_bytes(4, "big") + kind + content + check
        begin_time = processor_seconds()
        with contextlib.suppress(MediaError):  # as it likes, but soon
            decode_image(whole[:33] + chunk + whole[33:])
        assert processor_seconds() - begin_time < 10


def test_a_decoder_that_takes_memory_or_breaks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends the process ends nothing else."""

    def crash(module: str, *arguments: str) -> list[str]:
        del module, arguments
        return [*limits.command("media")[:1], "-c", "import os; os.abort()"]

    monkeypatch.setattr(decode, "command", crash)
    refused(lambda: decode_image(picture_file()), "breaks its decoder")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="memory is limited on Linux")
def test_a_decoder_starts_no_thread_for_every_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 40 MiB of what a decoder may: with 64 cores no sound could be decoded."""

    def count(module: str, *arguments: str) -> list[str]:
        code = (
            "import json, os, numpy; threads = os.listdir('/proc/self/task'); "
            "print(json.dumps({'error': f'{len(threads)} in all'}))"
        )
        del module, arguments
        return [*limits.command("media")[:1], "-c", code]

    monkeypatch.setattr(decode, "command", count)
    refused(lambda: decode_audio(sound_file()), "^1 in all$")


def test_a_decoder_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(module: str, *arguments: str) -> list[str]:
        del module, arguments
        return [*limits.command("media")[:1], "-c", "import time; time.sleep(60)"]

    monkeypatch.setattr(decode, "command", hang)
    monkeypatch.setattr(decode, "SECONDS", {"picture": 1})
    monkeypatch.setattr(decode, "_GRACE_SECONDS", 0)
    refused(lambda: decode_image(picture_file()), "more than 1 s")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(module: str, *arguments: str) -> list[str]:
        code = (
            "import sys; sys.modules['PIL'] = None; from gemma4_compile.confined import media; "
            f"media.main({arguments[0]!r}, {arguments[1]!r})"
        )
        del module
        return [*limits.command("media")[:1], "-c", code]

    monkeypatch.setattr(decode, "command", without)
    with pytest.raises(UsageError, match="Pillow") as caught:
        decode_image(picture_file())
    assert caught.value.hint == "pip install 'gemma4-compile[media]'"


@pytest.mark.parametrize("place", ["directory", "pipe", "nothing", "zero\0byte"])
def test_what_is_no_file_is_refused(tmp_path: Path, place: str) -> None:
    path = tmp_path / place
    if place == "directory":
        path.mkdir()
    elif place == "pipe":
        os.mkfifo(path)
    for read in (decode_image, decode_audio, decode_video, check_readable):
        refused(lambda read=read: read(path), "cannot read")  # type: ignore[misc]


@pytest.mark.parametrize(("form", "most"), [("WAV", 1e-4), ("FLAC", 1e-4), ("MP3", 0.05)])
def test_a_sound_is_one_channel_at_16_khz(form: str, most: float) -> None:
    stereo = tone(2, 48_000, channels=2)
    samples = decode_audio(sound_file(stereo, 48_000, form))
    assert samples.dtype == np.float32
    assert len(samples) == 32_000
    inner = slice(4000, -4000)  # an encoder bends the ends
    expected = tone(2) * (1 + 0.75) / 2  # to its middle: no click where a decoder was asked again
    assert np.abs(samples[inner] - expected[inner]).max() < max(most, 2e-3)


def test_samples_at_16_khz_are_left_as_they_are() -> None:
    assert (decode_audio(sound_file(tone(1), subtype="FLOAT")) == tone(1)).all()


def test_thirty_seconds_are_taken_and_an_encoders_padding_is_cut() -> None:
    assert len(decode_audio(sound_file(tone(30)))) == 480_000
    assert len(decode_audio(sound_file(tone(30.1)))) == 480_000


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"RIFF", "no sound"),
        (sound_file(np.zeros(0, np.float32)), "no samples"),
        (sound_file(tone(31)), "31.0 s; expected at most 30 s"),
        (sound_file(tone(31), form="FLAC"), "31.0 s"),
        (sound_file(tone(31), form="MP3"), "more than 30 s"),
        (sound_file(tone(2), form="FLAC")[:9000], "damaged"),
        (sound_file(np.array([0, np.nan], np.float32), subtype="FLOAT"), "nan"),
        (sound_file(np.array([0, 3e4], np.float32), subtype="FLOAT"), "magnitude 30000"),
        (sound_file(tone(2))[:-40_000], "ends 40000 bytes before its header says"),
        (wav_header(36_000), "no samples"),  # it says ten hours, and holds none
        (wav_header(1, rate=7) + bytes(14), "samples a second"),
        (wav_header(1, channels=1000, rate=16) + bytes(32_000), "no sound|channels|a second"),
    ],
)
def test_hostile_sounds_are_refused(content: bytes, words: str) -> None:
    refused(lambda: decode_audio(content), words)


@pytest.mark.parametrize("length", [0xFFFF_FFFF, 0x7FFF_F000, 32_044])
def test_a_wav_whose_length_was_not_known_is_whole(length: int) -> None:
    """As ffmpeg and sox write it into a pipe, and others that count its header as well."""
    content = sound_file(tone(1))
    assert content[36:40] == b"data"
    announced = content[:40] + struct.pack("<I", length) + content[44:]
    assert (decode_audio(announced) == decode_audio(content)).all()


def test_a_wav_that_counts_no_samples_has_those_that_follow() -> None:
    samples = np.arange(4000, dtype="<i2").tobytes()
    written = wav_header(0) + samples
    assert (decode_audio(written) == decode_audio(wav_header(0.25) + samples)).all()
    listed = wav_header(0) + b"LIST" + struct.pack("<I", 4) + b"INFO"  # another chunk: no samples
    refused(lambda: decode_audio(listed), "no samples")


def test_ten_hours_are_refused_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    path.write_bytes(wav_header(36_000))
    os.truncate(path, 44 + 36_000 * 32_000)  # a hole of more than a gigabyte
    error = refused(lambda: decode_audio(path), "36,000.0 s", seconds=3)
    assert "long.wav" in str(error)


def test_frames_of_a_video_are_at_even_distances(tmp_path: Path) -> None:
    frames = decode_video(video_file(tmp_path / "v.mp4", 100))
    assert len(frames) == 32
    indices = [i * 100 // 32 for i in range(32)]
    assert [frame.seconds for frame in frames] == [index / 24 for index in indices]
    shades = np.array([frame.pixels.mean() for frame in frames])
    assert np.abs(shades - [255 * index // 99 for index in indices]).max() < 6


def test_a_short_video_is_taken_whole(tmp_path: Path) -> None:
    frames = decode_video(video_file(tmp_path / "v.mp4", 3), (70, 48))
    assert [frame.pixels.shape for frame in frames] == [(336, 432, 3)] * 3


def test_frames_are_counted_where_the_header_does_not_say(tmp_path: Path) -> None:
    assert len(decode_video(video_file(tmp_path / "v.mkv", 40))) == 32


@pytest.mark.parametrize("count", [40, 2400])
def test_a_browsers_recording_is_taken_to_its_end(tmp_path: Path, count: int) -> None:
    path = video_file(tmp_path / "v.mkv", count, size=(32, 32), gop=100, rate=25, recorded=True)
    frames = decode_video(path)
    shades = np.array([frame.pixels.mean() for frame in frames])
    assert np.abs(shades - [255 * (i * count // 32) // (count - 1) for i in range(32)]).max() < 8
    assert frames[-1].seconds == pytest.approx(31 * count // 32 / 25, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["mp4", "mkv", "avi", "ts"])
def test_a_long_video_is_sought_in(tmp_path: Path, form: str) -> None:
    path = video_file(tmp_path / f"v.{form}", 2400, size=(32, 32), gop=100)
    shades = np.array([frame.pixels.mean() for frame in decode_video(path)])
    assert np.abs(shades - [255 * (i * 75) // 2399 for i in range(32)]).max() < 6


def test_of_a_film_that_is_cut_by_its_edit_list_the_part_that_it_shows_counts(
    tmp_path: Path,
) -> None:
    path = video_file(tmp_path / "v.mp4", 240)
    content = bytearray(path.read_bytes())
    begin, second = content.index(b"elst") + 12, content.index(b"mdhd") + 16
    (ticks,) = struct.unpack_from(">I", content, second)
    struct.pack_into(
        ">II", content, begin, 2000, 5 * ticks
    )  # two of ten seconds, from the fifth on
    path.write_bytes(content)
    frames = decode_video(path)
    assert [frame.seconds for frame in frames] == [(i * 48 // 32) / 24 for i in range(32)]
    shades = np.array([frame.pixels.mean() for frame in frames])
    assert np.abs(shades - [255 * (120 + i * 48 // 32) // 239 for i in range(32)]).max() < 6


@pytest.mark.slow
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("left_right", [1, -1])
@pytest.mark.parametrize("up_down", [1, -1])
def test_a_video_is_upright_and_mirrored_as_its_container_says(
    tmp_path: Path, transposed: bool, left_right: int, up_down: int
) -> None:
    matrix = (0, up_down, left_right, 0) if transposed else (left_right, 0, 0, up_down)
    (frame,) = decode_video(video_file(tmp_path / "v.mp4", 1, matrix=matrix))
    wanted = quarters(64, 48).astype(int)
    wanted = wanted.transpose(1, 0, 2) if transposed else wanted
    wanted = wanted[::up_down, ::left_right]
    assert frame.pixels.shape == wanted.shape
    assert np.abs(frame.pixels - wanted).mean() < 6


@pytest.mark.slow
def test_hostile_videos_are_refused(tmp_path: Path) -> None:
    whole = video_file(tmp_path / "v.mp4", 60)
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{whole}\n#EXT-X-ENDLIST\n"
    cut = whole.read_bytes()
    cut = cut[: cut.index(b"mdat") + 1000]  # the header says that there are 60 frames
    for content, words in (
        (b"", "empty"),
        (b"no video", "no video that is read"),
        (playlist.encode(), "no video that is read"),
        (f"ffconcat version 1.0\nfile {whole}\n".encode(), "no video that is read"),
        (whole.read_bytes()[:400], "not known|no video that is read|no frames"),
        (sound_file(), "no video that is read|only sound"),
        (cut, "damaged"),
    ):
        path = tmp_path / "hostile"
        path.write_bytes(content)
        refused(lambda path=path: decode_video(path), words)  # type: ignore[misc]

"""What `processor_config.json` asks of pictures, sounds and videos, next to what a package does.

transformers prepares media as that file says; a package as the file of the released checkpoints
does, in rooms that its options chose. What differs is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from gemma4_compile.checkpoint.chat_files import PROCESSOR_FILE
from gemma4_compile.checkpoint.files import read_json
from gemma4_compile.media.limits import SAMPLE_RATE_HZ, VIDEO_FRAMES
from gemma4_compile.media.settings import AudioSettings, ImageSettings, MediaSettings
from gemma4_compile.media.sizes import BUDGETS, DEFAULT_BUDGET
from gemma4_compile.options.process import warn

_IMAGE, _VIDEO, _SOUND = "image_processor", "video_processor", "feature_extractor"
_BUDGET = "max_soft_tokens"
_BICUBIC = 3  # PIL's number
_STEPS: Mapping[str, float] = {
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "resample": _BICUBIC,
}
_SHOWN = 40
_Finding = tuple[str, object, object]


def warn_of_processor(directory: Path, settings: MediaSettings) -> None:
    """Say what a checkpoint's processor does otherwise with media than the package.

    Raises
    ------
    CheckpointError
        If the file is damaged.
    """
    path = directory / PROCESSOR_FILE
    if not path.is_file():
        return
    config = read_json(path)
    found: list[_Finding] = []
    if settings.image is not None:
        found += _of_pictures(config, settings.image)
    if settings.audio is not None:
        found += _of_sounds(config, settings.audio)
    if not found:
        return
    shown = "; ".join(
        f"`{name}` is {str(given)[:_SHOWN]}, the package's {own}" for name, given, own in found
    )
    warn(
        f"{PROCESSOR_FILE}: transformers prepares media otherwise than the package: {shown}",
        _hint(config, settings.image),
    )


def _hint(config: Mapping[str, object], image: ImageSettings | None) -> str:
    given = _section(config, _IMAGE).get(_BUDGET)
    budget = next((one for one in BUDGETS if _is(given, one)), None)  # JSON may have 140.0
    if image is None or budget is None or budget == image.budget:
        return "replies about them may be others than transformers'"
    if budget <= DEFAULT_BUDGET:  # then it is what a picture takes
        return f"compile with --image-tokens {budget}"
    asked = f"ask for it with --image-tokens {budget}"
    if budget < image.max_budget:  # `high` is all that the package has room for
        return asked
    asked += ", or `detail: high` in a request"
    if budget == image.max_budget:
        return asked
    return f"compile with --image-tokens {budget}, and {asked}"


def _of_pictures(config: Mapping[str, object], image: ImageSettings) -> Iterator[_Finding]:
    # Fewer rows than released checkpoints have are what --image-tokens asks for.
    is_asked = image.max_budget < DEFAULT_BUDGET
    for section, own in (
        (_IMAGE, {} if is_asked else {_BUDGET: image.budget}),
        (_VIDEO, {_BUDGET: image.video_budget, "num_frames": VIDEO_FRAMES}),
    ):
        given = _section(config, section)
        yield from _others(section, given, own)
        patch, pooled = given.get("patch_size"), given.get("pooling_kernel_size")
        if isinstance(patch, int) and isinstance(pooled, int):
            block = patch * pooled
            if block != image.block_size:
                name = f"{section}.patch_size * pooling_kernel_size"
                yield name, block, image.block_size
        yield from _others(section, given, _STEPS)
        if given.get("do_normalize") is True:  # by 0 and 1 nothing changes
            yield from _others(section, given, {"image_mean": 0.0, "image_std": 1.0})


def _of_sounds(config: Mapping[str, object], audio: AudioSettings) -> Iterator[_Finding]:
    milliseconds = 1000 * audio.samples_per_row / SAMPLE_RATE_HZ
    yield from _others("", config, {"audio_ms_per_token": milliseconds})
    rate = {"sampling_rate": SAMPLE_RATE_HZ}
    yield from _others(_SOUND, _section(config, _SOUND), rate)


def _others(
    section: str, given: Mapping[str, object], own: Mapping[str, float]
) -> Iterator[_Finding]:
    """The fields that have another value; null and what is missing are transformers' own."""
    for name, value in own.items():
        said = given.get(name)
        if said is not None and not _is(said, value):
            shown = f"{value:g}" if isinstance(value, float) else value
            yield f"{section}.{name}".lstrip("."), said, shown


def _is(said: object, value: float) -> bool:
    """Return whether a number, or each of a list, is this one."""
    if isinstance(said, list):
        return bool(said) and all(_is(one, value) for one in said)
    return isinstance(said, int | float) and math.isclose(said, value, rel_tol=1e-6)


def _section(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}

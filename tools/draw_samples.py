"""Draw the pictures and the sounds that ship: for `gemma4-verify`, and for `tiny` in the demo.

    python tools/draw_samples.py

All are of our own making, from nothing but the formulas below. The picture of `gemma4-verify` is
stored as a NumPy archive, so that to read it needs no decoder.
"""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "gemma4_compile" / "verification" / "samples"
DEMO_FOLDER = ROOT / "examples" / "web" / "public" / "samples"
WIDTH, HEIGHT = 320, 224
RATE_HZ, SECONDS = 16_000, 2
DEMO_RATE_HZ = 8000
_FINER = 4  # times as many pixels, averaged


def picture() -> npt.NDArray[np.uint8]:
    """A sky over a hill, shapes with edges in every direction, stripes from coarse to fine."""
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float64)
    rgb = np.stack([70 + 0.3 * y, 120 + 0.3 * x, 220 - 0.5 * y], axis=-1)

    def paint(where: npt.NDArray[np.bool_], *colour: int) -> None:
        rgb[where] = colour

    paint(y > 150 + 25 * np.sin(x / 45), 40, 130, 60)
    paint((x - 70) ** 2 + (y - 60) ** 2 < 38**2, 250, 210, 40)
    paint((np.abs(x - 170) < 34) & (np.abs(y - 120) < 34), 190, 40, 50)
    paint((y > 30) & (y < 110) & (np.abs(x - 255) < (y - 30) / 2), 245, 245, 250)
    paint(np.abs(x + 1.3 * y - 330) < 5, 20, 20, 30)
    period = 4 + 12 * (x / WIDTH)
    paint((y > 185) & (np.floor(x / period) % 2 == 0), 230, 120, 200)
    return np.clip(np.rint(rgb), 0, 255).astype(np.uint8)


def sound() -> npt.NDArray[np.int16]:
    """A tone that climbs over three octaves, one that pulses, a click, and a pause."""
    time = np.arange(RATE_HZ * SECONDS) / RATE_HZ
    climbing = np.sin(2 * np.pi * 220 * (8 ** (time / SECONDS) - 1) * SECONDS / np.log(8))
    pulsing = np.sin(2 * np.pi * 3100 * time) * np.maximum(0, np.sin(2 * np.pi * 3 * time))
    level = np.where((time > 1.3) & (time < 1.5), 0.0, 1.0)
    values = level * (0.4 * climbing + 0.25 * pulsing)
    values[RATE_HZ // 2 : RATE_HZ // 2 + 8] = 1.0
    return np.rint(32_767 * np.clip(values, -1, 1)).astype(np.int16)


def shapes() -> npt.NDArray[np.uint8]:
    """A red circle and a blue square on white."""
    y, x = (np.mgrid[: 300 * _FINER, : 420 * _FINER] + 0.5) / _FINER
    rgb = np.full((*x.shape, 3), 255.0)
    rgb[np.hypot(x - 125, y - 150) < 66] = (224, 32, 40)
    rgb[(np.abs(x - 300) < 54) & (np.abs(y - 150) < 54)] = (36, 84, 216)
    averaged = rgb.reshape(300, _FINER, 420, _FINER, 3).mean(axis=(1, 3))
    return np.rint(averaged).astype(np.uint8)


def beeps() -> npt.NDArray[np.int16]:
    """Three high beeps."""
    time = np.arange(round(1.5 * DEMO_RATE_HZ)) / DEMO_RATE_HZ
    since = (time - 0.15) % 0.42
    inside = (time >= 0.15) & (time < 0.15 + 3 * 0.42) & (since < 0.18)
    edge = np.clip(np.minimum(since, 0.18 - since) / 0.01, 0, 1)
    values = np.where(inside, 0.5 * edge * np.sin(2 * np.pi * 1500 * time), 0.0)
    return np.rint(32_767 * values).astype(np.int16)


def _write_sound(path: Path, samples: npt.NDArray[np.int16], rate_hz: int) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(samples.astype("<i2").tobytes())


def main() -> None:
    """Write all files."""
    for folder in (FOLDER, DEMO_FOLDER):
        folder.mkdir(exist_ok=True)
    np.savez_compressed(FOLDER / "picture.npz", rgb=picture())
    _write_sound(FOLDER / "sound.wav", sound(), RATE_HZ)
    Image.fromarray(shapes()).save(DEMO_FOLDER / "shapes.png", optimize=True)
    _write_sound(DEMO_FOLDER / "beeps.wav", beeps(), DEMO_RATE_HZ)


if __name__ == "__main__":
    main()

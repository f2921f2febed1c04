"""Samples of sounds, and their features as Gemma 4's extractor makes them, with torch."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch.nn import functional
from transformers import Gemma4AudioFeatureExtractor

from tools.training.tiny.media_batches import Sounds
from tools.training.tiny.sounds import MADE, RATE

_FRAME, _HOP, _FFT = 320, 160, 512
_MULTIPLE = 128  # samples that the extractor pads to


def samples_of(sounds: Sounds, seed: int, device: str) -> torch.Tensor:
    """Samples (sounds, longest), 0 behind the end of each."""
    random = torch.Generator(device).manual_seed(seed)
    longest = int(sounds.samples.max())
    longest += -longest % _MULTIPLE
    time = torch.arange(longest, device=device)[None, :] / RATE
    events = torch.from_numpy(sounds.events).to(device)
    wave = torch.zeros(len(events), longest, device=device)
    for index in range(events.shape[1]):
        numbers = dict(zip(MADE, events[:, index, :, None].unbind(1), strict=True))
        length = numbers["length"]
        since = time - numbers["begin"]
        slope = (numbers["to_hz"] - numbers["from_hz"]) / length.clamp_min(1e-3)
        phase = 2 * math.pi * (numbers["from_hz"] * since + slope * since**2 / 2)
        timbre = numbers["timbre"]
        tone = phase.sin() + timbre * ((3 * phase).sin() / 3 + (2 * phase).sin() / 4)
        edge = numbers["edge"].clamp_min(1e-4)
        envelope = torch.minimum(since, length - since).div(edge).clamp(0, 1)
        wave += numbers["level"] / (1 + 0.5 * timbre) * tone * envelope
    deviation = torch.from_numpy(sounds.noise).to(device)[:, None]
    wave += deviation * torch.randn(wave.shape, generator=random, device=device)
    ends = torch.from_numpy(sounds.samples).to(device)[:, None]
    inside = torch.arange(longest, device=device)[None, :] < ends
    return wave.clamp(-1, 1) * inside


@cache
def _filters(device: str) -> tuple[torch.Tensor, torch.Tensor, float]:
    extractor = Gemma4AudioFeatureExtractor()
    window = torch.from_numpy(extractor.window).to(device)
    mels = torch.from_numpy(extractor.mel_filters).float().to(device)
    return window, mels, float(extractor.mel_floor)


def features(samples: torch.Tensor, ends: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-mel features (sounds, frames, 128) and which frames a sound fills.

    Parameters
    ----------
    samples : (sounds, longest), 0 behind the ends
    ends : (sounds,) how many samples each has
    """
    window, mels, floor = _filters(str(samples.device))
    frames = functional.pad(samples, (_FRAME // 2, 0)).unfold(-1, _FRAME + 1, _HOP)[..., :-1]
    spectrum = torch.fft.rfft(frames * window, n=_FFT).abs()
    found = (spectrum @ mels + floor).log()
    last = torch.arange(found.shape[1], device=samples.device) * _HOP + _FRAME - _FRAME // 2
    mask = last[None, :] < ends[:, None]
    return found * mask[..., None], mask

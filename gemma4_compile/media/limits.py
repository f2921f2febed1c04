"""Limits of what is decoded. Imports nothing."""

from __future__ import annotations

SAMPLE_RATE_HZ = 16_000
MAX_SAMPLES = 480_000  # 30 s: what the audio towers take
SLACK_S = 0.25  # an encoder's padding after 30 s, which is cut off

MAX_PICTURE_BYTES = 64 << 20
MAX_PIXELS = 1 << 26  # 67 million: more than most cameras have
MAX_SIDE = 1 << 15
MAX_RATE_HZ, MIN_RATE_HZ = 384_000, 1000
MAX_CHANNELS = 8

VIDEO_FRAMES = 32
VIDEO_BUDGET = 70  # rows of a video's frame
DEFAULT_FPS = 24.0

INSTALL = "pip install 'gemma4-compile[media]'"

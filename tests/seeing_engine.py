"""A compiled package with towers that a test wrote, in the place of those of its library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.media.settings import MediaSettings
from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.device.device import usable
from gemma4_compile.runtime.engine.media_rows import MediaRows
from gemma4_compile.runtime.package.package import Package
from tests.media_files import SETTINGS


class Towers:
    """Rows of a medium: numbers that only its content decides; counts how often it was asked."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.calls: list[str] = []
        self.extra_rows = 0

    def find(self, name: str) -> Any:
        return {abi.EMBED_IMAGE: self.image, abi.EMBED_AUDIO: self.audio}[name]

    def image(self, pixels: Any, positions: Any, params: object) -> Any:
        del params
        self.calls.append("image")
        values, places = np.from_dlpack(pixels), np.from_dlpack(positions)
        assert values.dtype == np.float32
        assert places.dtype == np.int32
        return self.rows(values.mean(axis=1) / 255 + places[:, 0])

    def audio(self, samples: Any, params: object) -> Any:
        del params
        self.calls.append("audio")
        values = np.from_dlpack(samples)
        return self.rows(np.abs(values).reshape(-1, 640).mean(axis=1))

    def rows(self, values: Any) -> Any:
        made = np.sin(np.outer(values, np.arange(1, self.width + 1))).astype(np.float32)
        made = np.concatenate([made, made[: self.extra_rows]])
        return tvm_ffi.from_dlpack(usable(made))


class Seeing:
    """An engine with towers, and what its prefill was given."""

    def __init__(self, directory: Path, ple: str | None = None) -> None:
        self.package = Package.open(directory)
        self.engine = Engine(self.package, ple=ple)
        ids = tvm_ffi.from_dlpack(usable(np.zeros(1, np.int32)))
        self.width = int(self.engine.runner.embed(ids, self.engine.runner.params).shape[1])
        self.towers = Towers(self.width)
        self.given: list[tuple[Any, list[int], list[int]]] = []
        self._prefill = self.engine.runner.prefill
        self.engine.runner.prefill = self.prefill

    def reset(self, settings: MediaSettings = SETTINGS) -> None:
        self.engine.clear()
        self.engine.runner.media = settings
        self.towers.calls, self.towers.extra_rows = [], 0
        self.given = []
        self.engine.runner.media_rows = MediaRows(
            self.towers.find, self.engine.device, self.engine.runner.params, settings
        )

    def prefill(self, embedded: Any, ids: Any, modality: Any, *others: Any) -> Any:
        rows, numbers, kinds = (np.array(np.from_dlpack(t))[0] for t in (embedded, ids, modality))
        self.given.append((rows, numbers.tolist(), kinds.tolist()))
        return self._prefill(embedded, ids, modality, *others)

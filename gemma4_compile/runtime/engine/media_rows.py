"""Rows of pictures and sounds: computed by the library, put in their places on the device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.media.inputs import Picture, Sound
from gemma4_compile.media.settings import MediaSettings
from gemma4_compile.runtime.device.device import Device, copy, view
from gemma4_compile.runtime.engine.media_prompt import Prompt

Embed = Callable[..., tvm_ffi.Tensor]


class MediaRows:
    """The towers of a package."""

    def __init__(
        self,
        function: Callable[[str], Embed],
        device: Device,
        params: tvm_ffi.Array[tvm_ffi.Tensor],
        settings: MediaSettings,
    ) -> None:
        """Find the functions.

        Parameters
        ----------
        function : finds one of the library
        params : its weights
        """
        self._device, self._params = device, params
        self._image = function(abi.EMBED_IMAGE) if settings.image is not None else None
        self._audio = function(abi.EMBED_AUDIO) if settings.audio is not None else None
        self._digest = b""  # of the last one, which a chunk may have cut
        self._rows: tvm_ffi.Tensor | None = None

    def put(self, prompt: Prompt, embedded: tvm_ffi.Tensor) -> None:
        """Overwrite the rows of media in the embedded ids of a chunk (count, hidden).

        Raises
        ------
        UsageError
            If the package does not take a medium.
        ArtifactError
            If the library makes other rows of it than its metadata say.
        """
        width = int(embedded.shape[1])
        row_bytes = width * tvm_ffi.dtype(embedded.dtype).itemsize
        for run in prompt.runs:
            rows = self._of(run.medium, width, str(embedded.dtype))
            shape = (run.count, width)
            copy(
                view(rows, shape, run.first * row_bytes),
                view(embedded, shape, run.start * row_bytes),
            )

    def read(self, medium: Picture | Sound) -> npt.NDArray[np.float32]:
        """Rows of a medium on the host; UsageError if the package does not take it."""
        return self._device.read(self._known(medium)).astype(np.float32)

    def _of(self, medium: Picture | Sound, width: int, dtype: str) -> tvm_ffi.Tensor:
        rows = self._known(medium)
        found = tuple(int(size) for size in rows.shape)
        if found != (medium.rows, width):
            self._rows = None
            raise ArtifactError(
                f"the library makes rows of shape {found} of a medium; expected "
                f"{(medium.rows, width)}",
                hint="compile the package again",
            )
        if str(rows.dtype) != dtype:
            rows = self._rows = self._device.place(self._device.read(rows).astype(np.dtype(dtype)))
        return rows

    def _known(self, medium: Picture | Sound) -> tvm_ffi.Tensor:
        """Rows of a medium, those of the last one or computed."""
        if self._rows is None or self._digest != medium.digest:
            self._rows = None
            self._rows, self._digest = self._computed(medium), medium.digest
        return self._rows

    def _computed(self, medium: Picture | Sound) -> tvm_ffi.Tensor:
        place = self._device.place
        if isinstance(medium, Sound):
            if self._audio is None:
                raise UsageError("this package takes no sounds", hint="leave the sound out")
            return self._audio(place(np.array(medium.samples, np.float32)), self._params)
        if self._image is None:
            raise UsageError("this package takes no pictures", hint="leave the picture out")
        pixels = place(medium.pixels.astype(np.float32))
        return self._image(pixels, place(np.array(medium.positions, np.int32)), self._params)

"""A cache of hot experts on the device: pages of those in the host's memory that are read most.

Between forwards, when the device has nothing to do, pages change places, and their addresses do
not: kernels and CUDA graphs read the same bytes, cached or not.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi

from gemma4_compile.runtime.device.cuda_runtime import CudaError
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.device.upload import Uploads
from gemma4_compile.runtime.device.virtual_memory import VirtualMemory
from gemma4_compile.runtime.engine.expert_choices import ExpertChoices
from gemma4_compile.runtime.engine.expert_heat import PageHeat, Stack, plan_moves
from gemma4_compile.runtime.library.kv_state import KvState
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.runtime.package.stored_weights import StoredWeight

EVERY = 8
"""Forwards of which one is looked at: a look waits for the device. Every chunk is."""
MOST_BYTES = 64 << 20
"""That change places after a look: what a token waits for at most."""

_log = logging.getLogger(__name__)
_PART = re.compile(r"\.part\d+$")


@dataclass(frozen=True)
class ExpertCounts:
    """What became of a cache so far.

    Attributes
    ----------
    looks : forwards that were looked at
    read_bytes, hit_bytes : that these read of the experts of the host's layers, and of those bytes
        that the device had
    moved_bytes : that came to the device
    cached_bytes : that the device has
    """

    looks: int
    read_bytes: int
    hit_bytes: int
    moved_bytes: int
    cached_bytes: int


class ExpertCache:
    """Pages of experts, those that are read most on the device.

    Attributes
    ----------
    frames, page_bytes : how many pages the device has room for, and their size
    looks, read_bytes, hit_bytes : as of `ExpertCounts`
    moved : pages that came to the device
    """

    def __init__(self, device: Device, device_bytes: int, sizes: Sequence[int]) -> None:
        """Take the device's memory for it; ArtifactError if there is no room.

        Parameters
        ----------
        device_bytes : at most
        sizes : bytes of the tensors that will be placed
        """
        self._device = device
        self._memory = VirtualMemory(device, device_bytes, sizes)
        self._upload = Uploads(device)
        self._tensors: dict[str, tuple[tvm_ffi.Tensor, range]] = {}
        self._frame_of: dict[int, int] = {}
        self._heat: PageHeat | None = None
        self._choices: ExpertChoices | None = None
        self._forwards = 0
        self._is_off = False
        self.frames, self.page_bytes = self._memory.frames, self._memory.page_bytes
        self.looks = self.moved = 0
        self.read_bytes = self.hit_bytes = 0.0

    @property
    def hits(self) -> float | None:
        """Share of what was read that the device had; None before anything was."""
        return self.hit_bytes / self.read_bytes if self.read_bytes else None

    @property
    def device_bytes(self) -> int:
        """Of the device's memory that it took."""
        return self.frames * self.page_bytes

    @property
    def cached_bytes(self) -> int:
        """Of the experts, in pages on the device."""
        return len(self._frame_of) * self.page_bytes

    def counts(self) -> ExpertCounts:
        """What became of it so far; also another thread may ask."""
        return ExpertCounts(
            self.looks,
            round(self.read_bytes),
            round(self.hit_bytes),
            self.moved * self.page_bytes,
            self.cached_bytes,
        )

    def place(self, weight: StoredWeight) -> tvm_ffi.Tensor:
        """A tensor with the values of a layer's experts, in the host's memory for now."""
        tensor, pages = self._memory.empty(weight.shape, weight.dtype)
        self._tensors[weight.name] = tensor, pages
        self._upload.fill(tensor, weight)
        return tensor

    def watch(
        self, library: NativeLibrary, layer_of: Mapping[str, int], experts: int
    ) -> NativeLibrary:
        """The library, whose forwards tell which experts they read.

        Parameters
        ----------
        layer_of : layers by the names of stored tensors
        experts : of a layer
        """
        layers = sorted({layer_of[name] for name in self._tensors})
        rows = {name: layers.index(layer_of[name]) for name in self._tensors}
        at = {tensor.data_ptr(): rows[name] for name, (tensor, _) in self._tensors.items()}
        self._choices = ExpertChoices(self._device, at, experts)
        self._heat = PageHeat(_stacks(self._tensors, rows), experts, self.page_bytes)
        return library.copied_by(self._choices)

    def attach(self, kv: KvState) -> None:
        """Look at forwards, and change places before the next ones."""
        kv.before_forward = self._tick

    def describe(self) -> str:
        """What a user is told of it."""
        size = f"{self.device_bytes / 1e9:.1f} GB"
        if self.hits is None:
            return f"expert cache of {size}: nothing was read yet"
        return (
            f"expert cache of {size}: {self.hits:.0%} of the bytes of experts that are the host's "
            f"came from the device ({self.looks} forwards looked at, {self.moved} pages moved)"
        )

    def _tick(self) -> None:
        assert self._choices is not None, "attached after the library is watched"
        self._forwards += 1
        if self._choices.has_chunk or self._forwards % EVERY == 0:
            self._look()

    def _look(self) -> None:
        """Count what the last forward read, and let pages that are read most have the frames."""
        assert self._choices is not None
        assert self._heat is not None
        read = self._heat.add(self._choices.read())
        if not read.any():
            return
        self.looks += 1
        self.read_bytes += float(read.sum())
        self.hit_bytes += float(read[list(self._frame_of)].sum())
        if self._is_off:
            return
        most = max(1, MOST_BYTES // self.page_bytes)
        moves = plan_moves(self._heat.scores, self._frame_of, self.frames, most)
        if not moves:
            return
        self._device.wait()
        try:
            for move in moves:  # frames of evicted pages are read until these are the host's
                if move.evicted is not None:
                    self._memory.to_host(move.evicted)
                    del self._frame_of[move.evicted]
            for move in moves:
                self._memory.fill(move.frame, move.page)
            self._device.wait()
            for move in moves:
                self._memory.to_frame(move.page, move.frame)
                self._frame_of[move.page] = move.frame
                self.moved += 1
        except CudaError as error:
            _log.warning("the expert cache stays as it is: %s", error)
            self._is_off = True


def _stacks(
    tensors: Mapping[str, tuple[tvm_ffi.Tensor, range]], rows: Mapping[str, int]
) -> list[Stack]:
    """Stored tensors as stacks; parts of one matrix have its experts one after the other."""
    totals: dict[str, int] = {}
    for name, (tensor, _) in tensors.items():
        totals[_PART.sub("", name)] = totals.get(_PART.sub("", name), 0) + _nbytes(tensor)
    begun: dict[str, int] = {}
    found = []
    for name, (tensor, pages) in tensors.items():
        whole, nbytes = _PART.sub("", name), _nbytes(tensor)
        first = begun.get(whole, 0)
        begun[whole] = first + nbytes
        share = first / totals[whole], (first + nbytes) / totals[whole]
        found.append(Stack(rows[name], *share, pages, nbytes))
    return found


def _nbytes(tensor: tvm_ffi.Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize

"""Where the experts lie: on the device, or, of the first layers, in the host's memory.

Only what a token chose of the host's is read, over the bus, by the same kernels. A layer's experts
lie together: which of them the next tokens choose is not known, so that a share of each layer's
would be read as often as the same share of the layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import tvm_ffi

from gemma4_compile.errors import UsageError
from gemma4_compile.package.interface import DRAFTER
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.device.host_memory import bytes_of, check_room, empty_on_host
from gemma4_compile.runtime.device.upload import Uploads
from gemma4_compile.runtime.engine.expert_cache import ExpertCache
from gemma4_compile.runtime.engine.table_place import planned_bytes, room_on
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.runtime.package.stored_weights import StoredWeight

MARGIN_BYTES = 512 << 20
"""Of the device's memory that is left free where experts are placed by what is free: for kernels,
graphs, and what the estimate of the intermediate results leaves out."""

CACHE_SHARE = 0.4
"""Of the device's room for experts where not all fit, what a cache of hot ones has at most."""
CACHE_TO_MISSING = 2
"""Times the bytes that do not fit: with more a cache would only warm up for longer."""
LEAST_CACHE_BYTES = 256 << 20
"""A smaller one is not worth its looks."""

_EXPERTS = re.compile(r"layers\.(\d+)\.experts\.")
_SCALES = re.compile(r"layers\.\d+\.router\.per_expert_scale\..*")
_ALL, _NONE = 1.0, 0.0
_LEAVE_OUT = "leave out --experts"
_NO_CACHE = "leave out --expert-cache"
_SMALLER = (
    "where the model does not fit, compile it with a smaller recipe: "
    "`gemma4-compile MODEL --target metal --fit 16GB` chooses one for 16 GB of GPU memory"
)


@dataclass(frozen=True)
class ExpertPlacement:
    """Where the experts of each layer lie.

    Attributes
    ----------
    layer_bytes : of the experts, by layer; empty for a model without experts
    on_host : layers whose experts lie in memory of the host that the device reads
    cache_bytes : of the device, for those of them that are read most
    """

    layer_bytes: Mapping[int, int]
    on_host: frozenset[int] = frozenset()
    cache_bytes: int = 0

    @property
    def host_bytes(self) -> int:
        """Size of those in the host's memory."""
        return sum(self.layer_bytes[layer] for layer in self.on_host)

    @property
    def share(self) -> float:
        """Part of the experts' bytes that is on the device; 1 for a model without experts."""
        return self.device_bytes / (sum(self.layer_bytes.values()) or 1) if self.on_host else _ALL

    @property
    def device_bytes(self) -> int:
        """Size of those on the device."""
        return sum(self.layer_bytes.values()) - self.host_bytes

    def is_on_host(self, name: str) -> bool:
        """Return whether a stored tensor belongs to those in the host's memory."""
        return _layer_of(name) in self.on_host

    def describe(self) -> str:
        """What a user is told, where some are in the host's memory."""
        cached = f"; the GPU keeps {self.cache_bytes / 1e9:.1f} GB of what is read most"
        return (
            f"experts of {len(self.on_host)} of {len(self.layer_bytes)} layers are in the host's "
            f"memory ({self.host_bytes / 1e9:.1f} GB), from which the GPU reads what a token needs"
            f"{cached if self.cache_bytes else ''}"
        )


def place_experts(
    metadata: Mapping[str, object],
    device: Device,
    share: float | None,
    *,
    drafter: bool,
    unused_bytes: int = 0,
    most_bytes: int | None = None,
    cache_bytes: int | None = 0,
) -> ExpertPlacement:
    """Choose where the experts lie.

    Parameters
    ----------
    metadata : what the library's `_metadata` returns, parsed
    share : of the experts' bytes on the device, 0 to 1, at most; None for all that its free memory
        has room for beside everything else
    drafter : it is loaded, too
    unused_bytes : of the planned memory, which a shorter context does not need
    most_bytes : of the device, if not all that is free there
    cache_bytes : of the device, for a cache of those in the host's memory; None for a part of its
        room where no share is given and not all fit

    Raises
    ------
    UsageError
        If there are no experts, or on a device whose memory is the host's, for a share that asks
        for something; or for one that is none.
    ArtifactError
        If the host has too little memory for them.
    """
    weights = _sizes(metadata)
    layers: dict[int, int] = {}
    for name, nbytes in weights.items():
        layer = _layer_of(name)
        if layer is not None:
            layers[layer] = layers.get(layer, 0) + nbytes
    placement = ExpertPlacement(dict(sorted(layers.items())))
    if share is not None:
        _check(share, placement, device)
    if cache_bytes:
        _check_cache(placement, device)
    if not device.kind.reads_host:
        return placement
    most = sum(layers.values())
    if share is None:
        own = metadata.get(DRAFTER)
        further = sum(_sizes(own).values()) if drafter and isinstance(own, Mapping) else 0
        further -= unused_bytes
        room = room_on(device, most_bytes)
        missing = _missing_bytes(metadata, room, sum(weights.values()), further)
        most -= missing
        if cache_bytes is None:
            cache_bytes = _cache_in(most, missing)
        most -= cache_bytes if missing else 0  # what is all there needs none
    else:
        most = round(share * most)
    on_host = _first_layers(placement, most)
    placed = ExpertPlacement(placement.layer_bytes, on_host, cache_bytes or 0 if on_host else 0)
    if placed.on_host:
        check_room(placed.host_bytes)
    return placed


class PlacedWeights:
    """Brings weights of files to their places: `Uploads`, but for experts in the host's memory."""

    def __init__(
        self, device: Device, placement: ExpertPlacement, cache: ExpertCache | None = None
    ) -> None:
        self._device, self._placement, self._cache = device, placement, cache
        self._upload = Uploads(device)

    def __call__(self, weight: StoredWeight) -> tvm_ffi.Tensor:
        """A tensor of the device with a weight's values; ArtifactError if there is no room for it.

        What is in the host's memory is read from the file into its place.
        """
        if not self._placement.is_on_host(weight.name):
            return self._upload(weight)
        if self._cache is not None:
            return self._cache.place(weight)
        tensor = empty_on_host(self._device, weight.shape, weight.dtype)
        weight.read_into(bytes_of(tensor), 0)
        return tensor


def _check(share: float, placement: ExpertPlacement, device: Device) -> None:
    """UsageError for a share that cannot be had."""
    if not _NONE <= share <= _ALL:
        raise UsageError(
            f"experts: expected a share from 0 to 1, found {share}", hint="0.5 is half of them"
        )
    if not placement.layer_bytes:
        raise UsageError(
            "experts: this package's model has none, so there is nothing to place",
            hint=f"{_LEAVE_OUT}: it is for mixtures of experts such as gemma-4-26B-A4B-it",
        )
    if device.kind.is_host and share != _NONE:
        raise UsageError(
            f"experts: `{device.name}` has no memory but the host's, where all of them lie",
            hint=f"{_LEAVE_OUT}, or run the package's library for `cuda`",
        )
    if not device.kind.is_host and not device.kind.reads_host and share != _ALL:
        raise UsageError(
            f"experts: on `{device.name}` the GPU's memory is the host's, so that none can lie "
            "elsewhere",
            hint=f"{_LEAVE_OUT}; {_SMALLER}",
        )


def _check_cache(placement: ExpertPlacement, device: Device) -> None:
    """UsageError for a cache that could hold nothing."""
    if not placement.layer_bytes:
        raise UsageError(
            "expert cache: this package's model has no experts",
            hint=f"{_NO_CACHE}: it is for mixtures of experts such as gemma-4-26B-A4B-it",
        )
    if device.kind.is_host:
        raise UsageError(
            f"expert cache: `{device.name}` has no memory but the host's, where all experts lie",
            hint=f"{_NO_CACHE}, or run the package's library for `cuda`",
        )
    if not device.kind.reads_host:
        raise UsageError(
            f"expert cache: on `{device.name}` the GPU's memory is the host's, so that every "
            "expert is on the device and a cache would hold a second copy",
            hint=f"{_NO_CACHE}; {_SMALLER}",
        )


def cache_of(
    metadata: Mapping[str, object], device: Device, placement: ExpertPlacement
) -> ExpertCache | None:
    """The cache of a placement; None for none.

    Errors as of `ExpertCache`.
    """
    if not placement.cache_bytes:
        return None
    sizes = [n for name, n in _sizes(metadata).items() if placement.is_on_host(name)]
    return ExpertCache(device, placement.cache_bytes, sizes)


def watched(
    library: NativeLibrary, metadata: Mapping[str, object], cache: ExpertCache | None
) -> NativeLibrary:
    """The library, whose forwards tell a cache which experts they read."""
    if cache is None:
        return library
    params = metadata["params"]
    assert isinstance(params, list), "the library's own metadata, held against the package"
    layer_of = {one["name"]: _layer_of(one["name"]) for one in params}
    (experts,) = {one["shape"][0] for one in params if _SCALES.fullmatch(one["name"])}
    found = {name: layer for name, layer in layer_of.items() if layer is not None}
    return cache.watch(library, found, experts)


def _cache_in(room: int, missing: int) -> int:
    """Bytes for a cache, of those that the device has for experts where some are missing."""
    most = min(round(CACHE_SHARE * room), CACHE_TO_MISSING * missing)
    return most if most >= LEAST_CACHE_BYTES else 0


def _missing_bytes(
    metadata: Mapping[str, object], free: int | None, weights: int, further: int
) -> int:
    """What everything on the device would need more than is free there; 0 if that is not known."""
    if free is None:
        return 0
    planned = planned_bytes(metadata) or weights
    return max(0, planned + further + MARGIN_BYTES - free)


def _first_layers(placement: ExpertPlacement, most: int) -> frozenset[int]:
    """As few of the first layers as leave at most so many bytes on the device; all, if need be."""
    rest, chosen = sum(placement.layer_bytes.values()), set[int]()
    for layer, nbytes in placement.layer_bytes.items():
        if rest <= most:
            break
        chosen.add(layer)
        rest -= nbytes
    return frozenset(chosen)


def _layer_of(name: str) -> int | None:
    """The layer whose experts a stored tensor belongs to."""
    found = _EXPERTS.match(name)
    return None if found is None else int(found[1])


def _sizes(metadata: Mapping[str, object]) -> dict[str, int]:
    """Bytes of stored tensors by name."""
    params = metadata.get("params", [])
    assert isinstance(params, list), "the library's own metadata, held against the package"
    return {
        one["name"]: prod(one["shape"]) * tvm_ffi.dtype(one["dtype"]).itemsize for one in params
    }

"""Experts in the host's memory, on the fake CUDA."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.device_kinds import DeviceType
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.runtime import Engine, Package
from gemma4_compile.runtime.device import device as device_module
from gemma4_compile.runtime.device import host_memory
from gemma4_compile.runtime.device.device import Device, view
from gemma4_compile.runtime.device.host_memory import bytes_of, empty_on_host, memory_for_copies
from gemma4_compile.runtime.engine import expert_placement
from gemma4_compile.runtime.prefixes.saved_rows import restore, save
from gemma4_compile.types import Array
from tests.cuda.launches import CUDA, PROMPT, launches_of, missing
from tests.cuda.sequences import add, addresses, fixed_addresses

READBACK_BYTES = 4
"""Page-locked memory that an engine has in any case."""


def page_locked(package: Path) -> None:
    """A tensor of the GPU in the host's memory, freed with the last view of it; and prefixes."""
    device = Device.open("cuda")
    values = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float16)
    tensor = empty_on_host(device, values.shape, "float16")
    assert (CUDA.bytes, CUDA.host_bytes) == (0, values.nbytes)
    assert (tensor.shape, str(tensor.dtype)) == ((3, 5), "float16")
    assert tensor.__dlpack_device__()[0] == DeviceType.CUDA
    bytes_of(tensor)[:] = values.tobytes()
    rows = view(tensor, (2, 5), begin=values[0].nbytes)
    del tensor
    gc.collect()
    assert CUDA.host_bytes == values.nbytes
    assert np.array_equal(device.read(rows), values[1:])
    del rows
    gc.collect()
    assert CUDA.host_bytes == 0
    _is_copied(device, values, locked=values.nbytes)
    CUDA.fail("cudaMallocHost")
    _is_copied(device, values, locked=0)
    with pytest.raises(ArtifactError, match="no room for 30 bytes of the host's memory") as told:
        empty_on_host(device, values.shape, "float16")
    assert told.value.hint is not None
    assert "--experts" in told.value.hint
    CUDA.fail("")
    _prefixes_are_kept(Engine.open(package))


def _prefixes_are_kept(engine: Engine) -> None:
    """Rows go to page-locked memory and come back from it: a piece of full layers, one of rings."""
    engine.prefill(PROMPT)
    entries, dtype = engine.sequence.row_entries()
    before, draws = CUDA.host_bytes, np.random.default_rng(2)
    saved = save(engine.sequence, entries, engine.device, None, None)
    locked = CUDA.host_bytes - before
    assert saved.length == len(PROMPT)
    assert 0 <= locked - sum(part.nbytes for part in saved.parts) < 64 * len(entries)
    written = [rows.array for part in saved.parts for rows in part.rows]
    for array in written:
        array[:] = draws.standard_normal(array.shape).astype(dtype)
    engine.sequence.clear()
    copied, _ = restore(engine.sequence, saved, saved.length, engine.device)
    assert copied == sum(array.nbytes for array in written)
    again = save(engine.sequence, entries, engine.device, None, None)
    assert CUDA.host_bytes - before == 2 * locked
    for one, array in zip((r for part in again.parts for r in part.rows), written, strict=True):
        assert np.array_equal(one.array, array)
    del saved, again, written, one, array
    gc.collect()
    assert CUDA.host_bytes == before


def _is_copied(device: Device, values: Array, locked: int) -> None:
    """Memory for copies is page-locked where that can be had, and freed with its last array."""
    memory = memory_for_copies(device, values.nbytes)
    assert CUDA.host_bytes == locked
    memory[:] = values.reshape(-1).view(np.uint8)
    array = memory.view(np.float16).reshape(values.shape)[1:]
    del memory
    gc.collect()
    assert CUDA.host_bytes == locked
    assert np.array_equal(device.read(device.place(array)), values[1:])
    assert memory_for_copies(device, 0).size == 0
    del array
    gc.collect()
    assert CUDA.host_bytes == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_memory, "available_bytes", lambda: values.nbytes)
        assert memory_for_copies(device, values.nbytes).nbytes == values.nbytes
        assert CUDA.host_bytes == 0


def _records(package: Path) -> dict[int, int]:
    """Bytes of the experts by layer, from the package's own list of tensors."""
    listed = json.loads((package / "tensor-cache.json").read_text())
    found: dict[int, int] = {}
    for record in (record for shard in listed["records"] for record in shard["records"]):
        parts = record["name"].split(".")
        if parts[0] == "layers" and parts[2] == "experts":
            found[int(parts[1])] = found.get(int(parts[1]), 0) + record["nbytes"]
    return found


def _is_placed(engine: Engine, package: Path, layers: set[int]) -> None:
    """The experts of these layers are in the host's memory, and every weight has its values."""
    sizes = _records(package)
    held = sum(sizes[layer] for layer in layers)
    assert engine.experts.on_host == layers
    assert CUDA.host_bytes - READBACK_BYTES == held == engine.experts.host_bytes
    assert engine.experts.device_bytes == sum(sizes.values()) - held
    described = json.loads(str(engine.model.library.compiled_function("_metadata")()))
    stored = dict(Package.open(package).map_weights())
    for one, tensor in zip(described["params"], engine.model.params, strict=True):
        assert np.array_equal(engine.device.read(tensor), stored[one["name"]])


def shares(package: Path) -> None:
    """So many of the first layers as leave no more than the share; the same kernels take them."""
    kernels = []
    for share, layers in (
        (1.0, set[int]()),
        (0.99, {0}),
        (0.75, {0}),
        (0.74, {0, 1}),
        (0.5, {0, 1}),
        (0.25, {0, 1, 2}),
        (1e-9, {0, 1, 2, 3}),
        (0.0, {0, 1, 2, 3}),
    ):
        engine = Engine.open(package, experts=share)
        _is_placed(engine, package, layers)
        engine.prefill(PROMPT)
        step = launches_of(lambda engine=engine: add(engine, 4))
        assert [a.kernel for a in step.direct] == [b.kernel for b in step.replayed]
        again = launches_of(lambda engine=engine: add(engine, 5))
        assert (again.direct, again.replayed) == ([], step.replayed), "one graph, as without"
        kernels.append([launch.kernel for launch in again.replayed])
        assert fixed_addresses(engine) & addresses(again.replayed)
        del engine, step, again
        gc.collect()
        assert (CUDA.host_bytes, CUDA.alive) == (0, 0)
    assert all(one == kernels[0] for one in kernels)


def by_room(package: Path) -> None:
    """Without a share so many are on the device as it has room for beside everything else."""
    provenance = json.loads((package / "provenance.json").read_text())
    (library,) = provenance["libraries"]
    needs = library["requirements"]
    parts = ("weights_bytes", "kv_sliding_bytes", "kv_full_bytes", "activation_bytes")
    needed = sum(needs[part] for part in parts) + expert_placement.MARGIN_BYTES
    (layer,) = set(_records(package).values())
    for free, layers in (
        (needed, set[int]()),
        (needed - 1, {0}),
        (needed - layer, {0}),
        (needed - layer - 1, {0, 1}),
        (needed - 4 * layer, {0, 1, 2, 3}),
        (0, {0, 1, 2, 3}),
    ):
        CUDA.set_free(free)
        engine = Engine.open(package)
        _is_placed(engine, package, layers)
        del engine
        gc.collect()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_module, "CudaRuntime", missing)
        assert not Engine.open(package).experts.on_host, "as of models without experts"


def experts_refused(package: Path, plain: str) -> None:
    """What cannot be had is said, and nothing is left."""
    with pytest.raises(UsageError, match="experts: this package's model has none"):
        Engine.open(Path(plain), experts=0.5)
    for share in (-0.01, 1.01, float("nan")):
        with pytest.raises(UsageError, match="experts: expected a share from 0 to 1, found"):
            Engine.open(package, experts=share)
    CUDA.fail("cudaMallocHost")
    with pytest.raises(ArtifactError, match="of the host's memory that the cuda device reads"):
        Engine.open(package, experts=0.5)
    CUDA.fail("")
    gc.collect()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_memory, "available_bytes", lambda: 1 << 30)
        with pytest.raises(ArtifactError, match="1073741824 are available"):
            Engine.open(package, experts=0.5)
        assert not Engine.open(package, experts=1.0).experts.on_host
    gc.collect()
    assert (CUDA.host_bytes, CUDA.alive) == (0, 0)
    assert not Engine.open(Path(plain)).experts.layer_bytes

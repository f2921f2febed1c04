"""Weights on their way to the fake CUDA."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.artifacts import Shard, TensorRecord
from gemma4_compile.runtime import Engine, Package
from gemma4_compile.runtime.device.device import Device, view
from gemma4_compile.runtime.device.upload import PIECE_BYTES, Uploads
from gemma4_compile.runtime.library.graph_memory import graph_bytes
from gemma4_compile.runtime.package.stored_weights import open_shard
from gemma4_compile.system.limits import peak_memory_bytes
from tests.cuda.launches import CUDA


def streamed_weights(package: Path) -> None:
    """Large weights come through one piece of memory: what the fake device has is counted out."""
    size = 200 << 20
    path = package.parent / "streamed.bin"
    values = np.random.default_rng(0).integers(0, 256, 4096, np.uint8)
    with path.open("wb") as file:
        file.truncate(size)  # zeros that no disk holds
        file.seek(size - values.nbytes)
        file.write(values.tobytes())
    record = TensorRecord("w", (size // 4,), "uint32", 0)
    shard = Shard(path.name, size, "", (record,))
    gpu = Device.open("cuda")
    uploads = Uploads(gpu)
    gpu.wait()
    CUDA.clear()
    before = peak_memory_bytes()
    with open_shard(path.parent, shard) as weights:
        tensor = uploads(weights["w"])
    path.unlink()
    peak = peak_memory_bytes()
    assert before is not None
    assert peak is not None
    assert CUDA.bytes == size, "the device has the whole weight"
    assert CUDA.uploads == size // PIECE_BYTES
    assert peak - before - size <= 2 * PIECE_BYTES, "of the host, one piece and its copies"
    end = view(tensor, (values.nbytes // 4,), size - values.nbytes)
    assert gpu.read(end).tobytes() == values.tobytes()


def refused_by_room(package: Path) -> None:
    """What would not fit is refused before a byte of it is on the device, and says what would."""
    opened = Package.open(package)
    assert opened.library is not None
    graphs = graph_bytes(opened.chat_config.vocab_size, 1, drafter=False)
    needed = opened.library.memory_bytes + graphs
    before, weights = CUDA.bytes, opened.library.amount("weights_bytes")
    CUDA.set_free(opened.library.amount("activation_bytes"))
    try:
        with pytest.raises(ArtifactError, match="does not fit the memory") as refused:
            Engine(opened, ple="gpu")
        assert CUDA.bytes - before < weights // 10, "the library's own, and no weights"
        assert "its weights alone" in str(refused.value.hint)
        CUDA.set_free(needed - 1)
        with pytest.raises(ArtifactError, match="does not fit the memory"):
            Engine(opened, ple="gpu")
        CUDA.set_free(needed)
        Engine(opened, ple="gpu")
    finally:
        CUDA.set_free(1 << 36)

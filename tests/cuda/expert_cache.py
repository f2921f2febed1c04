"""Experts that come to the device and go, on the fake CUDA's virtual memory.

Its kernels compute nothing, so that what is computed is computed by a library for the CPU, whose
experts lie in pages of the fake: to it they are the host's, with a cache.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gemma4_compile.device_kinds import CPU
from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.device import device as device_module
from gemma4_compile.runtime.device.cuda_runtime import CudaError
from gemma4_compile.runtime.device.virtual_memory import VirtualMemory
from gemma4_compile.runtime.engine import expert_cache, expert_placement
from gemma4_compile.runtime.engine.expert_cache import ExpertCache
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.sampling.sampling import Sampler, SamplingOptions
from tests import models
from tests.cuda.launches import CUDA, PROMPT, launches_of
from tests.cuda.sequences import add
from tests.cuda.virtual_pages import refuse_pages_of_host

PAGE = 4096
EXPERTS = int(models.MOE_LIKE["num_experts"])
TOP_K = int(models.MOE_LIKE["top_k_experts"])
TOKENS = [9, 11, 9, 40, 41, 42, 9, 9, 11, 60]
ALL = 1 << 30


@contextmanager
def _each_looked_at(most_moves: int = 4) -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expert_cache, "EVERY", 1)
        patch.setattr(expert_cache, "MOST_BYTES", most_moves * PAGE)
        yield patch


@contextmanager
def _experts_apart_on_the_cpu() -> Iterator[None]:
    """Let the CPU be a device that reads its experts from the host's memory."""
    with _each_looked_at() as patch:
        patch.setattr(device_module, "_kind", lambda name: replace(CPU, reads_host=True))
        patch.setattr(expert_placement, "_check_cache", lambda *_: None)
        patch.setattr(expert_placement, "check_room", lambda nbytes: None)
        yield


def _conversation(engine: Engine) -> Iterator[bytes]:
    """Logits of a prompt, of tokens after it, of steps that two sequences share, and of both."""
    yield engine.prefill(list(range(3, 24))).tobytes()
    for token in TOKENS:
        yield engine.decode(token).tobytes()
    other = engine.sequences.add()
    yield engine.prefill(PROMPT, other).tobytes()
    sampler = SamplingOptions(temperature=0.0)
    engine.sequence.sampler, other.sampler = Sampler(sampler, 1), Sampler(sampler, 1)
    for _ in range(4):
        yield bytes(engine.step([engine.sequence, other]))
    for token in TOKENS:
        yield engine.decode(token, other).tobytes()
    engine.clear()
    yield engine.prefill(PROMPT).tobytes()


def same_logits(package: Path) -> None:
    """Whatever the device has of the experts, logits are the same, byte for byte."""
    expected = list(_conversation(Engine.open(package, sequences=2)))
    with _experts_apart_on_the_cpu():
        for budget in (PAGE - 1, PAGE, 7 * PAGE + 5, ALL):
            engine = Engine.open(package, sequences=2, experts=0.0, expert_cache=budget)
            cache = engine.expert_cache
            found = list(_conversation(engine))
            assert found == expected, budget
            assert cache is not None
            _kept_to(cache, budget)
            if budget == ALL:
                _is_full(engine, cache)
            del engine, cache
            gc.collect()
            assert CUDA.virtual_bytes[0] == CUDA.handles(on_device=True) == 0


def _kept_to(cache: ExpertCache, budget: int) -> None:
    assert cache.page_bytes == PAGE
    assert cache.cached_bytes <= budget
    assert CUDA.handles(on_device=True) == cache.frames
    assert cache.looks >= len(TOKENS) * 2
    assert cache.hits is not None
    if budget < PAGE:
        assert (cache.frames, cache.moved, cache.hits) == (0, 0, 0.0)
        return
    assert 0 < cache.hits <= 1
    assert cache.moved >= cache.frames if budget < ALL else cache.moved
    assert f"{cache.hits:.0%} of the bytes of experts" in cache.describe()


def _is_full(engine: Engine, cache: ExpertCache) -> None:
    """A cache with room for all has what was read before, and reads are what was chosen."""
    for _ in range(20):  # a few pages a look
        engine.decode(9)
        engine.pop(1)
    moved, read, hit, looks = cache.moved, cache.read_bytes, cache.hit_bytes, cache.looks
    for _ in range(3):
        engine.decode(9)
        engine.pop(1)
    assert cache.moved == moved, "what is hot is there"
    assert cache.looks == looks + 3
    one = engine.experts.host_bytes * TOP_K / EXPERTS
    assert cache.read_bytes - read == pytest.approx(3 * one)
    assert cache.hit_bytes - hit == pytest.approx(3 * one)
    engine.clear()
    engine.prefill([9])  # a chunk of one token: its matmuls are given tiles, not ids
    read = cache.read_bytes
    engine.prefill([9])
    assert cache.read_bytes - read == pytest.approx(one)


def recorded_choices(package: Path) -> None:
    """A graph copies what was chosen with each replay, and its kernels are those of before."""
    plain = Engine.open(package, experts=0.0)
    assert plain.expert_cache is None
    plain.prefill(PROMPT)
    without = launches_of(lambda: add(plain, 4))
    with _each_looked_at():
        engine = Engine.open(package, experts=0.0, expert_cache=6 * PAGE)
        cache = engine.expert_cache
        assert cache is not None
        engine.prefill(PROMPT)
        step = launches_of(lambda: add(engine, 4))
        assert [one.kernel for one in step.direct] == [one.kernel for one in without.direct]
        assert [one.kernel for one in step.replayed] == [one.kernel for one in without.replayed]
        looks = cache.looks
        for token in (5, 6, 7):
            again = launches_of(lambda token=token: add(engine, token))
            assert (again.direct, again.replayed) == ([], step.replayed), "addresses stay"
        assert cache.looks == looks + 3
        assert cache.frames == 6 <= cache.moved
        assert cache.cached_bytes == 6 * PAGE
        assert engine.placement.expert_cache == 6 * PAGE


def cache_stays(package: Path) -> None:
    """What the driver refuses to move stays on the host, and the model runs on."""

    def refuses(*_: object) -> None:
        raise CudaError("refused")

    with _each_looked_at() as patch:
        engine = Engine.open(package, experts=0.0, expert_cache=6 * PAGE)
        patch.setattr(VirtualMemory, "to_frame", refuses)
        engine.prefill(PROMPT)
        for token in (4, 5, 6):
            engine.decode(token)
        assert engine.expert_cache is not None
        assert engine.expert_cache.looks > 1
        assert engine.expert_cache.cached_bytes == 0


def cache_by_room(package: Path) -> None:
    """Where not all experts fit there is a cache, or, if the driver refuses it, none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expert_placement, "LEAST_CACHE_BYTES", 1)
        every = Engine.open(package)
        assert every.expert_cache is None
        planned = json.loads(every.model.library.metadata())["artifact"]["resources"]
        room = planned["estimated_device_memory_bytes"] + expert_placement.MARGIN_BYTES
        most = room - every.experts.device_bytes // 2
        found = Engine(Package.open(package), most_bytes=most)
        assert found.expert_cache is not None
        assert found.placement.expert_cache == found.expert_cache.device_bytes
        assert Engine(Package.open(package), most_bytes=most, expert_cache=0).expert_cache is None
        CUDA.fail("cuMemCreate")
        refused = Engine(Package.open(package), most_bytes=most)
        CUDA.fail("")
        assert refused.expert_cache is None
        assert len(refused.experts.on_host) < len(found.experts.on_host), "its room is theirs"
        before = CUDA.handles(on_device=True)
        refuse_pages_of_host(patch)
        refused = Engine(Package.open(package), most_bytes=most)
        assert refused.expert_cache is None
        assert CUDA.handles(on_device=True) == before, "what it had taken by then is free again"


def cache_refused(package: Path) -> None:
    """What cannot be had is said, and nothing is left."""
    for function in ("cuMemCreate", "cuMemMap"):
        CUDA.fail(function)
        with pytest.raises(ArtifactError, match="bytes for pages of experts"):
            Engine.open(package, experts=0.5, expert_cache=PAGE)
        CUDA.fail("")
    gc.collect()
    assert (CUDA.host_bytes, CUDA.alive, CUDA.virtual_bytes[0]) == (0, 0, 0)
    assert Engine.open(package, experts=1.0, expert_cache=PAGE).expert_cache is None
    assert CUDA.handles(on_device=True) == 0

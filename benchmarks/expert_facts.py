"""Where the experts of an engine lie, and what became of a cache of them, as fields of lines."""

from __future__ import annotations

from typing import Any

from gemma4_compile.runtime.engine.engine import Engine


def experts_by_place(engine: Engine) -> dict[str, Any]:
    """Bytes of a mixture's experts by where they lie; nothing without experts."""
    found = engine.experts
    if not found.layer_bytes:
        return {}
    return {
        "experts_on_gpu_bytes": found.device_bytes,
        "experts_on_host_bytes": found.host_bytes,
    }


def cache_of_experts(engine: Engine) -> dict[str, Any]:
    """What became of the cache of experts so far; nothing without one."""
    cache = engine.expert_cache
    if cache is None:
        return {}
    found = cache.counts()
    return {
        "expert_cache_bytes": cache.frames * cache.page_bytes,
        "expert_cached_bytes": found.cached_bytes,
        "expert_read_bytes": found.read_bytes,
        "expert_hit_bytes": found.hit_bytes,
        "expert_moved_bytes": found.moved_bytes,
    }

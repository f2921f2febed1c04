"""A server's metrics, read as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gemma4_compile.runtime.engine.beginnings import KeptCounts
from gemma4_compile.runtime.engine.expert_cache import ExpertCounts
from gemma4_compile.runtime.server.counts import Counts
from gemma4_compile.runtime.server.prometheus import exposition
from gemma4_compile.runtime.server.worker import WorkerState
from tests.live_server import QUESTION, TOOL_TEMPLATE, Live, serving_script
from tests.scripted_engine import ScriptedEngine, encode

KEY = "secret"


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(encode("It is sunny."))


@pytest.fixture(scope="module")
def live(engine: ScriptedEngine) -> Iterator[Live]:
    with serving_script(engine, TOOL_TEMPLATE, api_key=KEY) as live:
        yield live


def samples(live: Live) -> dict[str, float]:
    return read(live.request("GET", "/metrics", Authorization=f"Bearer {KEY}")[2])


def read(content: bytes) -> dict[str, float]:
    text = content.decode()
    found: dict[str, Any] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def talk(live: Live, **options: Any) -> Any:
    client = live.client(KEY)
    return client.chat.completions.create(model="scripted", messages=QUESTION, **options)


def test_requests_are_counted_by_tokens_and_ends(live: Live) -> None:
    before = samples(live)
    first, second = talk(live).usage, talk(live, max_tokens=2).usage
    after = samples(live)
    change = {name: value - before[name] for name, value in after.items()}
    assert change["gemma4_replies_total{end=stop}"] == 1
    assert change["gemma4_replies_total{end=length}"] == 1
    assert change["gemma4_generated_tokens_total"] == (
        first.completion_tokens + second.completion_tokens
    )
    held = second.prompt_tokens_details.cached_tokens
    assert held == second.prompt_tokens - 1
    assert change["gemma4_prompt_tokens_total{source=held}"] == held
    assert change["gemma4_prompt_tokens_total{source=read}"] == first.prompt_tokens + 1
    for name in ("waited", "first_token"):
        assert change[f"gemma4_{name}_seconds_count"] == 2
        assert change[f"gemma4_{name}_seconds_bucket{{le=+Inf}}"] == 2
        assert change[f"gemma4_{name}_seconds_sum"] >= 0
    assert after["gemma4_slots{doing=free}"] == 1


def test_kept_prefixes_are_counted_where_there_are_any(live: Live) -> None:
    kept = KeptCounts(
        prefixes=3,
        nbytes=500,
        budget=900,
        saved=7,
        hits=4,
        restored_tokens=1200,
        copied_bytes=800,
        placed_tokens=1000,
    )
    found = read(exposition(WorkerState((), 0, Counts(), kept), "")[0])
    assert {name: value for name, value in found.items() if "prefix" in name} == {
        "gemma4_prefixes": 3,
        "gemma4_prefix_bytes": 500,
        "gemma4_prefix_budget_bytes": 900,
        "gemma4_prefixes_saved_total": 7,
        "gemma4_prefix_hits_total": 4,
        "gemma4_prefix_hit_tokens_total": 1200,
        "gemma4_prefix_slot_tokens_total": 1000,
        "gemma4_prefix_copied_bytes_total": 800,
    }
    assert not any("prefix" in name for name in samples(live))


def test_a_cache_of_experts_is_counted_where_there_is_one(live: Live) -> None:
    experts = ExpertCounts(
        looks=3, read_bytes=900, hit_bytes=600, moved_bytes=4096, cached_bytes=8192
    )
    found = read(exposition(WorkerState((), 0, Counts(), None, experts), "")[0])
    assert {name: value for name, value in found.items() if "expert" in name} == {
        "gemma4_expert_cached_bytes": 8192,
        "gemma4_expert_read_bytes_total": 900,
        "gemma4_expert_hit_bytes_total": 600,
        "gemma4_expert_moved_bytes_total": 4096,
    }
    assert not any("expert" in name for name in samples(live))


def test_openmetrics_for_who_asks_for_it(live: Live) -> None:
    _, headers, body = live.request(
        "GET",
        "/metrics",
        Authorization=f"Bearer {KEY}",
        Accept="application/openmetrics-text; version=1.0.0",
    )
    assert headers["content-type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")

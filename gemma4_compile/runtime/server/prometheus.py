"""A worker's state in Prometheus' text or OpenMetrics', by prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gemma4_compile.runtime.engine.beginnings import KeptCounts
from gemma4_compile.runtime.server.counts import SECONDS, Distribution
from gemma4_compile.runtime.server.worker import WorkerState


def exposition(state: WorkerState, accept: str) -> tuple[bytes, str]:
    """The text of a state and its content type, in the best form that an Accept header takes."""
    registry = CollectorRegistry()
    registry.register(_State(state))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _State(Collector):
    """What a worker is at, and has done, as metrics."""

    def __init__(self, state: WorkerState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """All metrics, at this moment."""
        state = self._state
        counts = state.counts
        yield GaugeMetricFamily(
            "gemma4_requests_waiting", "Requests that wait for a slot.", value=state.waiting
        )
        doing = GaugeMetricFamily("gemma4_slots", "Slots by what they do.", labels=["doing"])
        for name in ("free", "reads", "waits", "writes"):
            count = sum(slot.doing == name for slot in state.slots)
            doing.add_metric([name], count)
        yield doing
        replies = CounterMetricFamily(
            "gemma4_replies", "Replies by how they ended.", labels=["end"]
        )
        for end, count in counts.ended.items():
            replies.add_metric([end], count)
        yield replies
        prompts = CounterMetricFamily(
            "gemma4_prompt_tokens",
            "Tokens of prompts: read, or held from an earlier one.",
            labels=["source"],
        )
        prompts.add_metric(["read"], counts.read_tokens)
        prompts.add_metric(["held"], counts.held_tokens)
        yield prompts
        for name, value, says in (
            ("generated_tokens", counts.generated_tokens, "Tokens of replies."),
            ("guessed_tokens", counts.guessed_tokens, "Tokens that the drafter guessed."),
            ("accepted_tokens", counts.accepted_tokens, "Guesses that came true."),
            ("joint_steps", counts.steps, "Steps of replies that did not run alone."),
            ("joint_tokens", counts.rows, "Tokens that these steps chose."),
        ):
            yield CounterMetricFamily(f"gemma4_{name}", says, value=value)
        yield _histogram("gemma4_waited_seconds", "From a built prompt to a slot.", counts.waited_s)
        yield _histogram(
            "gemma4_first_token_seconds",
            "From a built prompt to the first token.",
            counts.first_token_s,
        )
        if state.kept is not None:
            yield from _of_prefixes(state.kept)


def _of_prefixes(kept: KeptCounts) -> Iterator[Metric]:
    for name, value, says in (
        ("prefixes", kept.prefixes, "Beginnings of prompts that are kept."),
        ("prefix_bytes", kept.nbytes, "Bytes of kept beginnings."),
        ("prefix_budget_bytes", kept.budget, "Bytes that kept beginnings may take."),
    ):
        yield GaugeMetricFamily(f"gemma4_{name}", says, value=value)
    for name, value, says in (
        ("prefixes_saved", kept.saved, "Beginnings that were ever kept."),
        ("prefix_hits", kept.hits, "Prompts that went on from a kept beginning."),
        ("prefix_hit_tokens", kept.restored_tokens, "Tokens that these did not read."),
    ):
        yield CounterMetricFamily(f"gemma4_{name}", says, value=value)


def _histogram(name: str, says: str, values: Distribution) -> Metric:
    parts, total = list(values.counts), 0
    buckets = []
    for bound, count in zip([*map(str, SECONDS), "+Inf"], parts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return HistogramMetricFamily(name, says, buckets=buckets, sum_value=values.total)

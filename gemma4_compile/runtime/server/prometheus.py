"""States of workers in Prometheus' text or OpenMetrics', by prometheus_client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

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
from gemma4_compile.runtime.engine.expert_cache import ExpertCounts
from gemma4_compile.runtime.server.counts import SECONDS, Counts, Distribution
from gemma4_compile.runtime.server.worker import WorkerState


def exposition(state: WorkerState, accept: str) -> tuple[bytes, str]:
    """The text of a state and its content type, in the best form that an Accept header takes."""
    return _written([((), state)], (), {}, accept)


def exposition_of_models(
    states: Mapping[str, WorkerState], loads: Mapping[str, int], accept: str
) -> tuple[bytes, str]:
    """The text of several models' states, each metric with the label `model`.

    Parameters
    ----------
    states : of those that are loaded
    loads : how often each was loaded
    """
    named = [((name,), state) for name, state in states.items()]
    return _written(named, ("model",), loads, accept)


_Named = Sequence[tuple[tuple[str, ...], WorkerState]]
"""States, each with the values of the labels that all of its metrics have."""


def _written(
    states: _Named, labels: tuple[str, ...], loads: Mapping[str, int], accept: str
) -> tuple[bytes, str]:
    registry = CollectorRegistry()
    registry.register(_States(states, labels, loads))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _States(Collector):
    """What workers are at, and have done, as metrics."""

    def __init__(self, states: _Named, labels: tuple[str, ...], loads: Mapping[str, int]) -> None:
        self._states = states
        self._labels = labels
        self._loads = loads

    def collect(self) -> Iterator[Metric]:
        """All metrics, at this moment."""
        yield self._of_each(
            GaugeMetricFamily,
            "requests_waiting",
            "Requests that wait for a slot.",
            lambda state: state.waiting,
        )
        names = ("free", "reads", "waits", "writes")
        yield self._divided(
            GaugeMetricFamily,
            "slots",
            "Slots by what they do.",
            "doing",
            lambda state: {name: sum(slot.doing == name for slot in state.slots) for name in names},
        )
        yield self._divided(
            CounterMetricFamily,
            "replies",
            "Replies by how they ended.",
            "end",
            lambda state: state.counts.ended,
        )
        yield self._divided(
            CounterMetricFamily,
            "prompt_tokens",
            "Tokens of prompts: read, or held from an earlier one.",
            "source",
            lambda state: {"read": state.counts.read_tokens, "held": state.counts.held_tokens},
        )
        for name, says, count in _COUNTERS:
            yield self._of_each(CounterMetricFamily, name, says, count)
        for name, says, values in _TIMES:
            family = HistogramMetricFamily(f"gemma4_{name}", says, labels=self._labels)
            for labels, state in self._states:
                found = values(state.counts)
                family.add_metric(labels, _buckets(found), found.total)
            yield family
        if any(state.kept is not None for _, state in self._states):
            yield from self._of_prefixes()
        if any(state.experts is not None for _, state in self._states):
            yield from self._of_experts()
        if self._loads:
            loaded = GaugeMetricFamily("gemma4_model_loaded", "It is loaded.", labels=self._labels)
            loads = CounterMetricFamily(
                "gemma4_model_loads", "How often it was loaded.", labels=self._labels
            )
            known = {labels for labels, _ in self._states}
            for model, times in self._loads.items():
                loaded.add_metric((model,), (model,) in known)
                loads.add_metric((model,), times)
            yield loaded
            yield loads

    def _of_each(
        self,
        family: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        says: str,
        value: Callable[[WorkerState], int],
    ) -> Metric:
        found = family(f"gemma4_{name}", says, labels=self._labels)
        for labels, state in self._states:
            found.add_metric(labels, value(state))
        return found

    def _divided(
        self,
        family: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        says: str,
        by: str,
        values: Callable[[WorkerState], Mapping[str, int]],
    ) -> Metric:
        found = family(f"gemma4_{name}", says, labels=(*self._labels, by))
        for labels, state in self._states:
            for key, value in values(state).items():
                found.add_metric((*labels, key), value)
        return found

    def _of_prefixes(self) -> Iterator[Metric]:
        for family, names in ((GaugeMetricFamily, _HELD), (CounterMetricFamily, _SAVED)):
            for name, says, count in names:
                found = family(f"gemma4_{name}", says, labels=self._labels)
                for labels, state in self._states:
                    if state.kept is not None:
                        found.add_metric(labels, count(state.kept))
                yield found

    def _of_experts(self) -> Iterator[Metric]:
        for family, name, says, count in _EXPERTS:
            found = family(f"gemma4_{name}", says, labels=self._labels)
            for labels, state in self._states:
                if state.experts is not None:
                    found.add_metric(labels, count(state.experts))
            yield found


_COUNTERS: tuple[tuple[str, str, Callable[[WorkerState], int]], ...] = (
    ("generated_tokens", "Tokens of replies.", lambda state: state.counts.generated_tokens),
    (
        "guessed_tokens",
        "Tokens that the drafter guessed.",
        lambda state: state.counts.guessed_tokens,
    ),
    ("accepted_tokens", "Guesses that came true.", lambda state: state.counts.accepted_tokens),
    ("joint_steps", "Steps of replies that did not run alone.", lambda state: state.counts.steps),
    ("joint_tokens", "Tokens that these steps chose.", lambda state: state.counts.rows),
    (
        "turn_rounds",
        "Rounds of guesses of replies that did not run alone.",
        lambda state: state.counts.turn_rounds,
    ),
    ("turn_tokens", "Tokens of these rounds.", lambda state: state.counts.turn_tokens),
    (
        "joint_rounds",
        "Forwards that checked guesses of several replies.",
        lambda state: state.counts.joint_rounds,
    ),
    (
        "joint_round_tokens",
        "Tokens of these forwards.",
        lambda state: state.counts.joint_round_tokens,
    ),
    (
        "ridden_tokens",
        "Tokens of prompts that were read in a step of other replies.",
        lambda state: state.counts.ridden_tokens,
    ),
    (
        "put_aside",
        "Times that a reply gave its slot to a short request for a while.",
        lambda state: state.counts.put_aside,
    ),
)
_TIMES: tuple[tuple[str, str, Callable[[Counts], Distribution]], ...] = (
    ("waited_seconds", "From a built prompt to a slot.", lambda counts: counts.waited_s),
    (
        "first_token_seconds",
        "From a built prompt to the first token.",
        lambda counts: counts.first_token_s,
    ),
)
_OfKept = tuple[tuple[str, str, Callable[[KeptCounts], int]], ...]
_HELD: _OfKept = (
    ("prefixes", "Beginnings of prompts that are kept.", lambda kept: kept.prefixes),
    ("prefix_bytes", "Bytes of kept beginnings.", lambda kept: kept.nbytes),
    ("prefix_budget_bytes", "Bytes that kept beginnings may take.", lambda kept: kept.budget),
)
_SAVED: _OfKept = (
    ("prefixes_saved", "Beginnings that were ever kept.", lambda kept: kept.saved),
    ("prefix_hits", "Prompts that went on from a kept beginning.", lambda kept: kept.hits),
    ("prefix_hit_tokens", "Tokens that these did not read.", lambda kept: kept.restored_tokens),
    (
        "prefix_slot_tokens",
        "Of these tokens, those whose rows of full layers a slot still had.",
        lambda kept: kept.placed_tokens,
    ),
    (
        "prefix_copied_bytes",
        "Bytes that came from the host's memory for these.",
        lambda kept: kept.copied_bytes,
    ),
)

_EXPERTS: tuple[
    tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, Callable[[ExpertCounts], int]],
    ...,
] = (
    (
        GaugeMetricFamily,
        "expert_cached_bytes",
        "Bytes of experts in the cache on the device.",
        lambda experts: experts.cached_bytes,
    ),
    (
        CounterMetricFamily,
        "expert_read_bytes",
        "Bytes of the host's experts that forwards read, of those that were looked at.",
        lambda experts: experts.read_bytes,
    ),
    (
        CounterMetricFamily,
        "expert_hit_bytes",
        "Of these, bytes that the cache on the device had.",
        lambda experts: experts.hit_bytes,
    ),
    (
        CounterMetricFamily,
        "expert_moved_bytes",
        "Bytes of experts that came to the cache.",
        lambda experts: experts.moved_bytes,
    ),
)


def _buckets(values: Distribution) -> list[tuple[str, float]]:
    total = 0
    buckets = []
    for bound, count in zip([*map(str, SECONDS), "+Inf"], values.counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets

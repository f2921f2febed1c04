from __future__ import annotations

from dataclasses import replace

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.package.step_work import AttentionWork, StepWork
from gemma4_compile.runtime.check.bench import (
    DECODED,
    REPEATS,
    Measurement,
    measure,
    shares,
    table,
)
from gemma4_compile.runtime.check.peaks import Peaks
from gemma4_compile.runtime.check.shares import Yardstick
from gemma4_compile.runtime.engine.media_prompt import Tokens
from gemma4_compile.runtime.sampling.sampling import Float32Array
from gemma4_compile.system.limits import peak_memory_bytes
from tests.scripted_engine import VOCABULARY, ScriptedEngine

PREFILL_S, DECODE_S = 0.5, 0.125  # of a chunk and of a token


class TimedEngine(ScriptedEngine):
    """Tells time by what it is asked to do."""

    now = 0.0

    def prefill(self, ids: Tokens) -> Float32Array:
        self.now += PREFILL_S
        return super().prefill(ids)

    def decode(self, token_id: int) -> Float32Array:
        self.now += DECODE_S
        return super().decode(token_id)


def test_speeds_are_those_of_the_engine() -> None:
    engine = TimedEngine([], context_length=600, prefill_chunk=64)
    first, second = measure(engine, VOCABULARY, lambda: engine.now)
    assert (first.context, second.context) == (128, 512)
    assert first.first_token_s == 2 * PREFILL_S
    assert first.prefill_tokens_per_s == pytest.approx(64 / PREFILL_S)
    assert second.prefill_tokens_per_s == pytest.approx(64 / PREFILL_S)
    assert first.decode_tokens_per_s == pytest.approx(1 / DECODE_S)
    assert first.repeats == REPEATS
    assert engine.length == 0


def test_a_slow_device_is_not_measured_for_ever() -> None:
    engine = TimedEngine([], context_length=40_000, prefill_chunk=2)
    (only,) = measure(engine, VOCABULARY, lambda: engine.now)  # 36 seconds a run
    assert (only.context, only.repeats) == (128, 1)


def test_a_short_context_is_measured_at_what_fits() -> None:
    engine = TimedEngine([], context_length=DECODED + 3)
    (only,) = measure(engine, VOCABULARY, lambda: engine.now)
    assert only.context == 3
    with pytest.raises(UsageError, match="too short to measure"):
        next(measure(TimedEngine([], context_length=DECODED), VOCABULARY))


def test_the_table_has_a_line_for_each_length() -> None:
    engine = TimedEngine([], context_length=600)
    lines = table(list(measure(engine, VOCABULARY, lambda: engine.now))).splitlines()
    assert [line.split()[0] for line in lines] == ["prompt", "128", "512"]


WORK = StepWork(1_000_000, 2_000, 300, (AttentionWork(2, 1, 64, 128, 100),))
PEAKS = Peaks("shares of a device", 1e9, 1e6)


def test_shares_are_of_what_the_package_reads_and_does() -> None:
    measured = Measurement(
        context=200,
        prefill_tokens_per_s=100.0,
        decode_tokens_per_s=500.0,
        first_token_s=2.0,
        repeats=3,
    )
    pairs = sum(min(row, 100) for row in range(1, 201))
    operations = 2 * (2_000 * 200 + 300 * 4 + 2 * 64 * pairs)  # in chunks of 64
    bandwidth = 500.0 * (1_000_000 + 2 * 128 * 100) / 1e9
    yardstick = Yardstick(WORK, PEAKS, 64)
    assert shares(measured, yardstick) == pytest.approx((operations / 2.0 / 1e6, bandwidth))
    head, row, source = table([measured], yardstick).splitlines()
    assert (head.count("of peak"), head.count("of bandwidth"), source) == (1, 1, PEAKS.source)
    assert f"{100 * bandwidth:.1f} %" in row
    guessed = replace(measured, tokens_per_step=2.0)  # weights are read half as often
    assert shares(guessed, yardstick)[1] == pytest.approx(bandwidth / 2)


def test_what_is_not_known_has_no_share_and_a_reason() -> None:
    measured = Measurement(200, 100.0, 500.0, 2.0, 3)
    older = table([measured], Yardstick(None, PEAKS, 64)).splitlines()
    assert "of peak" not in older[0]
    assert "compile the package again" in older[-1]
    on_host = Yardstick(WORK, PEAKS, 64, experts_on_host=True)
    assert shares(measured, on_host)[1] is None
    assert "-" in table([measured], on_host).splitlines()[1].split()
    assert "over the bus" in on_host.describe()


def test_memory_is_more_than_nothing() -> None:
    peak = peak_memory_bytes()
    assert peak is not None
    assert 2**20 < peak < 2**40

"""Speed of a package here: prefill and decode at several lengths, and the memory it takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.check.shares import Yardstick
from gemma4_compile.runtime.engine.token_engine import TokenEngine
from gemma4_compile.runtime.sampling.sampling import Float32Array
from gemma4_compile.runtime.speculative.draft_pace import Drafting, DraftPace

LENGTHS = (128, 512, 2048, 8192, 32_768)
DECODED = 32  # tokens
REPEATS = 3
_SEED = 1
_PATIENCE_S = 30.0  # longer than this, and no further repeat or length is tried


@dataclass(frozen=True)
class Measurement:
    """One length.

    Attributes
    ----------
    context : tokens of the prompt
    prefill_tokens_per_s, decode_tokens_per_s : medians
    first_token_s : seconds that the prompt took, median
    repeats : how often both were measured, after one run to warm up
    tokens_per_step : tokens that a forward gave, with guesses that came true; None where there is
        no drafter
    """

    context: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    first_token_s: float
    repeats: int
    tokens_per_step: float | None = None


def measure(
    engine: TokenEngine,
    vocab_size: int,
    clock: Callable[[], float] = time.perf_counter,
    lengths: Sequence[int] = LENGTHS,
) -> Iterator[Measurement]:
    """Measure at every length that fits, shortest first, until it takes too long.

    Decoding after a prompt of N tokens takes DECODED tokens. Random tokens do as well as any: the
    time does not depend on them, but in a mixture of experts, where they reach more experts than a
    text does.

    Parameters
    ----------
    clock : returns seconds
    lengths : of prompts, in tokens

    Raises
    ------
    UsageError
        If the context is too short.
    """
    if engine.context_length <= DECODED:
        raise UsageError(
            f"a context of {engine.context_length} tokens is too short to measure",
            hint=f"give --context-length more than {DECODED}",
        )
    lengths = [n for n in lengths if n + DECODED <= engine.context_length]
    lengths = lengths or [engine.context_length - DECODED]
    rng = np.random.default_rng(_SEED)
    pace = None
    if engine.rounds is not None and engine.rounds.most_drafts:
        pace = DraftPace.of(engine.rounds.drafts, engine.rounds.most_drafts)
    _run(engine, rng.integers(vocab_size, size=min(lengths[0], 16)).tolist(), pace, clock)
    for length in lengths:
        ids = rng.integers(vocab_size, size=length).tolist()
        begin = clock()
        runs: list[tuple[float, float, Drafting]] = []
        while len(runs) < REPEATS and clock() - begin < _PATIENCE_S:
            runs.append(_run(engine, ids, pace, clock))
        draftings = [drafting for *_, drafting in runs]
        yield Measurement(
            context=length,
            prefill_tokens_per_s=length / statistics.median(prefill for prefill, *_ in runs),
            decode_tokens_per_s=DECODED / statistics.median(decode for _, decode, _ in runs),
            first_token_s=statistics.median(prefill for prefill, *_ in runs),
            repeats=len(runs),
            tokens_per_step=_tokens_per_step(draftings) if pace else None,
        )
        if clock() - begin >= _PATIENCE_S:
            return


def _tokens_per_step(runs: list[Drafting]) -> float:
    together = Drafting(
        sum(run.steps for run in runs),
        sum(run.guessed for run in runs),
        sum(run.accepted for run in runs),
    )
    return together.tokens_per_step


def _run(
    engine: TokenEngine, ids: list[int], pace: DraftPace | None, clock: Callable[[], float]
) -> tuple[float, float, Drafting]:
    """Seconds of the prompt and of the tokens after it, and what became of guesses."""
    engine.clear()
    begin = clock()
    for first in range(0, len(ids), engine.prefill_chunk):
        logits = engine.prefill(ids[first : first + engine.prefill_chunk])
    middle = clock()
    drafting = _decode(engine, logits, pace, clock)
    end = clock()
    engine.clear()
    return middle - begin, end - middle, drafting


def _decode(
    engine: TokenEngine, logits: Float32Array, pace: DraftPace | None, clock: Callable[[], float]
) -> Drafting:
    """Add DECODED tokens, each the most probable one, with guesses where there is a drafter."""
    drafting = Drafting()
    token_id, added = int(np.argmax(logits)), 0
    while added < DECODED:
        begin, count = clock(), 0 if pace is None else pace.count
        if pace is None or not count or engine.rounds is None:
            token_id = int(np.argmax(engine.decode(token_id)))
            drafting.steps, added = drafting.steps + 1, added + 1
            if pace is not None:
                pace.note_step(clock() - begin)
            continue
        guesses, rows = engine.rounds.advance(token_id, min(count, DECODED - added - 1))
        accepted = 0
        token_id = int(np.argmax(rows.read(0)))
        while accepted < len(guesses) and token_id == guesses[accepted]:
            accepted += 1
            token_id = int(np.argmax(rows.read(accepted)))
        engine.rounds.accept(accepted)
        added += accepted + 1
        drafting.note(len(guesses), accepted)
        pace.note_round(len(guesses), accepted, clock() - begin)
    return drafting


def shares(measured: Measurement, yardstick: Yardstick) -> tuple[float | None, float | None]:
    """Shares of the arithmetic's peak by the prompt, of the bandwidth by the tokens after it."""
    return (
        yardstick.of_arithmetic(measured.context, measured.first_token_s),
        yardstick.of_bandwidth(
            measured.context + DECODED / 2,
            measured.decode_tokens_per_s / (measured.tokens_per_step or 1),
        ),
    )


def table(measurements: list[Measurement], yardstick: Yardstick | None = None) -> str:
    """The measurements for people.

    `yardstick` : shares of it are columns, where there are any, and a line says what of
    """
    drafts = any(m.tokens_per_step is not None for m in measurements)
    found = [(None, None) if yardstick is None else shares(m, yardstick) for m in measurements]
    shown = any(share is not None for both in found for share in both)
    lines = [
        "prompt tokens   prefill tok/s"
        + ("   of peak" if shown else "")
        + "   first token   decode tok/s"
        + ("   of bandwidth" if shown else "")
        + "   repeats"
        + ("   tokens a step" if drafts else "")
    ]
    for m, (arithmetic, bandwidth) in zip(measurements, found, strict=True):
        lines.append(
            f"{m.context:>13,}   {m.prefill_tokens_per_s:>13,.1f}"
            + (f"   {_percent(arithmetic):>7}" if shown else "")
            + f"   {m.first_token_s:>9.3f} s   {m.decode_tokens_per_s:>12,.1f}"
            + (f"   {_percent(bandwidth):>12}" if shown else "")
            + f"   {m.repeats:>7}"
            + (f"   {m.tokens_per_step:>13.2f}" if m.tokens_per_step is not None else "")
        )
    if yardstick is not None:
        lines.append(yardstick.describe())
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"

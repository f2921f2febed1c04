"""Measures a native package (cuda, metal, cpu) in the Python runtime; appends result lines.

The package may hold nothing but its library (`gemma4-compile MODEL --only library`): its weights
are then random, written to `--folder` first. What is measured: README.md next to this file.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.device_facts import device_memory_bytes, device_name
from benchmarks.environment import environment
from benchmarks.expert_facts import cache_of_experts, experts_by_place
from benchmarks.guessed_beside import WAYS, guessed_beside
from benchmarks.guessed_replies import GuessedReplies, accepted_by_coin
from benchmarks.native_options import native_options
from benchmarks.placed_sequence import fill_with_random_keys, place_at
from benchmarks.samples import summary, timed
from benchmarks.shared_steps import shared_steps
from benchmarks.synthetic_package import synthetic_package
from gemma4_compile import abi
from gemma4_compile.options.chat import AUTO, PLACES, parse_drafts, parse_experts
from gemma4_compile.package.artifacts import Provenance, read_artifact
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.engine.rounds import Rounds
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.speculative.draft_pace import tokens_of_round

TEMPERATURE, TOP_P = 1.0, 0.95
SAME_STEPS, SAME_BREAK = 96, 24
SAME_ROUNDS, SAME_DRAFTS = 12, 4
ACCEPTANCE = (0.6, 0.7, 0.8)
ACCEPTED = 0.7  # of the guesses in a round that is timed


class Measurement:
    """One package, loaded once."""

    def __init__(
        self,
        package: Package,
        options: argparse.Namespace,
        graphs: bool,
        ple: str | None,
        experts: float | None,
        expert_cache: int = 0,
    ) -> None:
        self.package, self.options, self.graphs = package, options, graphs
        Device.open(package.device)
        self.memory_before = device_memory_bytes(package.device)
        self.weight_bytes = sum(shard.nbytes for shard in package.tensor_cache.shards)
        begin = time.perf_counter()
        self.engine = Engine(
            package,
            context_length=options.capacity,
            graphs=graphs,
            sequences=max(options.sequences, default=1),
            ple=ple,
            experts=experts,
            expert_cache=expert_cache,
        )
        self.load_s = time.perf_counter() - begin
        self.ids = np.random.default_rng(1).integers(3, self.engine.vocab_size, 1 << 16).tolist()

    def memory(self) -> dict[str, Any]:
        """Bytes that the device holds by now."""
        now = device_memory_bytes(self.engine.device.name)
        used = None if now is None or self.memory_before is None else now - self.memory_before
        return {"device_memory_bytes": used}

    def load(self) -> dict[str, Any]:
        """From opening the library to a state that takes tokens; then the first prefill."""
        first = timed(lambda: self._fill(8))
        return {
            "load_s": round(self.load_s, 3),
            "first_forward_ms": round(first, 3),
            "weight_bytes": self.weight_bytes,
            "weight_bytes_per_second": round(self.weight_bytes / self.load_s),
            **self.memory(),
        }

    def smoke(self) -> dict[str, Any]:
        """Return whether logits are finite, in prefill and decode, and what all results come to.

        The digest is of the logits of SAME_STEPS tokens, and of as many drawn in both ways, with a
        break after each SAME_BREAK of the latter. Rings of sliding layers wrap meanwhile.
        """
        logits = [self._fill(20)] + [self.engine.decode(token) for token in self.ids[:8]]
        finite = all(bool(np.isfinite(values).all()) for values in logits)
        deviation = float(np.std(logits[-1]))
        digest = hashlib.sha256()
        begin = min(1000, self.options.capacity // 8)
        self._fill(begin)
        for token in self.ids[:SAME_STEPS]:
            digest.update(self.engine.decode(token).tobytes())
        digest.update(repr(self._one_by_one(SAME_STEPS)).encode())
        self._fill(begin)
        for token in self.ids[: SAME_STEPS // SAME_BREAK]:
            digest.update(repr(self._ahead(SAME_BREAK)).encode())
            digest.update(self.engine.decode(token).tobytes())
        if self.engine.rounds is not None:
            self._begin_rounds(begin)
            options, uniforms = (TEMPERATURE, TOP_P), np.random.default_rng(4).random(9).tolist()
            for token in self.ids[:SAME_ROUNDS]:
                found = self._rounds.advance_drawn(
                    token, SAME_DRAFTS, options, lambda rows: uniforms[:rows]
                )
                digest.update(repr(found).encode())
                self._rounds.accept(1)
        return {
            "finite": finite,
            "logits_deviation": round(deviation, 4),
            "digest": digest.hexdigest()[:16],
            "launches_in_graphs": list(self.engine.runner.steps.kernels),
        }

    def _one_by_one(self, count: int) -> list[int]:
        """Tokens that are drawn on the device; each is on the host before the next step."""
        token, tokens = self.ids[0], []
        engine, sequence = self.engine, self.engine.sequence
        for uniform in np.random.default_rng(2).random(count).tolist():
            logits = engine.runner.forward_one(sequence, token)
            token = engine.sampling.draw(logits, TEMPERATURE, TOP_P, uniform)
            tokens.append(token)
        return tokens

    def _ahead(self, count: int) -> list[int]:
        """Tokens as a reply gets them."""
        uniforms = iter(np.random.default_rng(2).random(count).tolist())
        sampled = self.engine.sampling.sampled
        with closing(sampled(TEMPERATURE, TOP_P, lambda: next(uniforms))) as drawn:
            return list(islice(drawn, count))

    def prefill(self, count: int) -> dict[str, Any]:
        """A prompt in chunks, until the last logits are on the host."""
        samples = [timed(lambda: self._fill(count)) for _ in range(self.options.repeats + 1)][1:]
        speed = 1e3 * count / statistics.median(samples)
        return {
            "tokens": count,
            "chunk": self.engine.prefill_chunk,
            "prefill_ms": summary(samples),
            "tokens_per_second": round(speed, 1),
        }

    def decode(self, context: int, keys: str = "forwarded") -> dict[str, Any]:
        """One token after `context` others, in several ways; milliseconds a token."""
        engine, tokens = self.engine, self.options.tokens
        ids = self.ids[:tokens]
        begin = self._fill if keys == "forwarded" else partial(place_at, engine)

        def with_logits() -> None:
            for token in ids:
                engine.decode(token)

        def submitted() -> None:
            for token in ids:
                engine.runner.forward_one(engine.sequence, token)

        def launched() -> None:  # nothing waits for a result
            submitted()
            engine.device.wait()

        result: dict[str, Any] = {"context": context, "keys": keys, "tokens_per_sample": tokens}
        actions: list[tuple[str, Callable[[], Any]]] = [
            ("launched_ms", launched),
            ("logits_read_ms", with_logits),
            ("sampled_ms", lambda: self._one_by_one(tokens)),
            ("sampled_ahead_ms", lambda: self._ahead(tokens)),
            ("host_ms", submitted),
        ]
        for name, action in actions:
            samples = []
            for _ in range(self.options.repeats + 1):
                begin(context)
                samples.append(timed(action) / tokens)
                engine.device.wait()
            result[name] = summary(samples[1:])
        result["tokens_per_second"] = round(1e3 / result["sampled_ahead_ms"]["median"], 1)
        return result

    def verify(self, context: int, rows: int) -> dict[str, Any]:
        """Some tokens at once after `context` others, as guesses are checked; nothing is read."""
        engine, drafter, sequence = self.engine, self._rounds.drafter, self.engine.sequence
        repeats = max(1, self.options.tokens // rows)

        def checked() -> None:
            for index in range(repeats):
                sequence.begin(rows)
                self._rounds.put(self.ids[index * rows : (index + 1) * rows])
                drafter.run(rows)
                sequence.end()
            engine.device.wait()

        samples = self._samples(lambda: self._fill(context), checked, repeats)
        return {"context": context, "rows": rows, "launched_ms": samples}

    def step(self, context: int, sequences: int) -> dict[str, Any]:
        """A token of each of several sequences."""
        sizes = self.options.tokens, self.options.repeats
        return shared_steps(self.engine, self.ids, context, sequences, *sizes)

    def draft(self, context: int, drafts: int) -> dict[str, Any]:
        """Guesses after `context` tokens, several in one go; nothing is read."""
        engine, drafter, sequence = self.engine, self._rounds.drafter, self.engine.sequence

        def guessed() -> None:
            for token in self.ids[: self.options.tokens]:
                sequence.begin(drafts + 1)
                drafter.guess(token, context + 1, drafts)
                sequence.end()
                sequence.pop(drafts + 1)
            engine.device.wait()

        of_tokens = self.options.tokens * drafts
        samples = self._samples(lambda: self._begin_rounds(context), guessed, of_tokens)
        return {"context": context, "drafts": drafts, "token_ms": samples}

    def round(self, context: int, drafts: int) -> dict[str, Any]:
        """Whole rounds as a sampled reply has them, until what was drawn is on the host.

        Random weights guess wrong, so how many guesses count as accepted is drawn here. What a
        round takes hardly hangs on it; how many tokens it gives is computed for each share.
        """
        count = self.options.tokens
        rng, options = np.random.default_rng(3), (TEMPERATURE, TOP_P)

        def peek(rows: int) -> list[float]:
            return rng.random(rows).tolist()

        def rounds() -> None:
            for token in self.ids[:count]:
                guesses, _ = self._rounds.advance_drawn(token, drafts, options, peek)
                self._rounds.accept(accepted_by_coin(rng, len(guesses), ACCEPTED))

        samples = self._samples(lambda: self._begin_rounds(context), rounds, count)
        speeds = {
            f"{share:.0%}": round(1e3 * tokens_of_round(share, drafts) / samples["median"], 1)
            for share in ACCEPTANCE
        }
        return {
            "context": context,
            "drafts": drafts,
            "round_ms": samples,
            "tokens_per_second": speeds,
            "launches_in_graphs": self._round_launches(),
        }

    def replies(self, context: int, share: float, drafts: str) -> dict[str, Any]:
        """Sampled replies after `context` tokens where a share of guesses comes true."""
        given = GuessedReplies(self.engine, lambda: self._fill(context))
        tokens, repeats = self.options.replies, self.options.repeats
        samples = given.tokens_per_s(share, parse_drafts(drafts), tokens, repeats + 1)[1:]
        return {
            "context": context,
            "share": share,
            "drafts": drafts,
            "tokens": tokens,
            "tokens_per_second": summary(samples),
        }

    def beside(self, context: int, sequences: int, share: float, way: str) -> dict[str, Any]:
        """Replies beside each other where a share of guesses comes true."""
        sizes = self.options.replies, self.options.repeats
        return guessed_beside(self.engine, self.ids, context, sequences, share, way, *sizes)

    @property
    def _rounds(self) -> Rounds:
        rounds = self.engine.rounds
        assert rounds is not None, "a library with a drafter"
        return rounds

    def _round_launches(self) -> list[int]:
        rounds = self.engine.rounds
        return [] if rounds is None else list(rounds.drafter.calls.kernels)

    def _begin_rounds(self, context: int) -> None:
        """Add tokens, so that the state after them is known."""
        self._fill(context)
        self._rounds.advance(self.ids[context], 0)
        self._rounds.accept(0)

    def _samples(
        self, prepare: Callable[[], Any], action: Callable[[], Any], count: int
    ) -> dict[str, float]:
        """Milliseconds of an action that does something `count` times; the first is left out."""
        samples = []
        for _ in range(self.options.repeats + 1):
            prepare()
            samples.append(timed(action) / count)
        return summary(samples[1:])

    def _fill(self, count: int) -> Any:
        self.engine.clear()
        return self.engine.prefill(self.ids[:count])


def main() -> None:
    """Measure, print, append."""
    options = native_options(__doc__)
    provenance = Provenance.from_json(read_artifact(options.package / abi.PROVENANCE_FILE))
    build = provenance.build
    with tempfile.TemporaryDirectory(prefix="gemma4-bench-") as scratch:
        synthetic = not (options.package / abi.TENSOR_CACHE_FILE).exists()
        begin = time.perf_counter()
        if synthetic:
            folder = options.folder or Path(scratch)
            package = synthetic_package(options.package, folder, options.skew)
            print(f"weights written in {time.perf_counter() - begin:.1f} s", file=sys.stderr)
        else:
            package = Package.open(options.package)
        where = environment(options.commit)
        common = {
            "benchmark": "native",
            **where,
            "versions": build["versions"],
            "library": provenance.files[provenance.library or ""][1][:12],
            "model": options.model or str(build["source"].get("id", build["source"]["kind"])),
            **{name: build[name] for name in ("target", "recipe", "limits", "activations")},
            "prefill_chunk": build["prefill_chunk"],
            "weights": "synthetic" if synthetic else "package",
            **({"skew": options.skew} if synthetic and options.skew else {}),
            "device": device_name(package.device),
        }

        def report(measure: str, fields: dict[str, Any]) -> None:
            line = json.dumps({**common, "measure": measure, **fields})
            print(line, flush=True)
            options.results.parent.mkdir(parents=True, exist_ok=True)
            with options.results.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

        digests = set()
        modes = {"on": [True], "off": [False], "both": [False, True]}[options.graphs]
        places = PLACES if options.ple == "both" else (options.ple,)
        shares = map(parse_experts, options.experts.split(","))
        for graphs, ple, experts, cache in itertools.product(
            modes, places, shares, options.expert_cache
        ):
            measurement = Measurement(package, options, graphs, ple, experts, cache)
            common |= {"graphs": graphs and package.device == "cuda", "ple": ple}
            common |= {"programmatic_launch": measurement.engine.model.library.programmatic}
            if any(options.expert_cache):
                common["expert_cache"] = cache
            common |= experts_by_place(measurement.engine)
            report("load", measurement.load())
            same = measurement.smoke()
            digests.add(same["digest"])
            report("smoke", same)
            for count in options.prefill:
                report("prefill", measurement.prefill(count))
            for context in map(int, filter(None, options.context.split(","))):
                report("decode", measurement.decode(context))
                for rows in filter(None, options.verify.split(",")):
                    report("verify", measurement.verify(context, int(rows)))
                for sequences in options.sequences:
                    report("step", measurement.step(context, sequences))
                for drafts in map(int, filter(None, options.drafts.split(","))):
                    report("draft", measurement.draft(context, drafts))
                    report("round", measurement.round(context, drafts))
                ways = ["0", *filter(None, options.drafts.split(",")), AUTO]
                for share in ACCEPTANCE if options.replies else ():
                    for drafts in ways:
                        report("reply", measurement.replies(context, share, drafts))
                    for count, way in itertools.product(options.sequences, WAYS):
                        report("beside", measurement.beside(context, count, share, way))
            if options.at:
                fill_with_random_keys(measurement.engine)
            for position in map(int, filter(None, options.at.split(","))):
                report("decode", measurement.decode(position, "random"))
            report("memory", measurement.memory() | cache_of_experts(measurement.engine))
            del measurement
            gc.collect()  # memory of the device for the next one
        if len(digests) != 1:
            sys.exit("results of these ways differ, which they must not: see `digest`")


if __name__ == "__main__":
    main()

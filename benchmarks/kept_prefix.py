"""Times the first token of prompts whose beginning is kept; appends a result line.

As `gemma4-serve` does it: a prompt of `--tokens` is read once, and then come prompts that share all
but the last `--own` tokens with it. Beside them, prompts of `--own` tokens alone. Two ways:

- `host`: those take the sequence over, so that all rows come from the host's memory;
- `slot`: those have another sequence, as in another slot; but replies of a chunk and more
  have gone over the rings of sliding layers, so that these come from the host's memory.

Tokens that were read again and bytes that were copied are counted, which needs no device.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmarks.device_facts import device_name
from benchmarks.environment import append_line, environment
from benchmarks.native_options import RESULTS
from benchmarks.samples import summary
from benchmarks.synthetic_package import synthetic_package
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.engine.generation import Generator
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.engine.sequence_engine import EngineSequences
from gemma4_compile.runtime.prefixes.kept import KeptPrefixes, kept_prefixes
from gemma4_compile.runtime.sampling.sampling import Sampler, SamplingOptions
from gemma4_compile.tiny.checkpoint import shipped_file

TEMPERATURE, TOP_P = 1.0, 0.95


@dataclass(frozen=True)
class Asked:
    """What a prompt took to its first token.

    Attributes
    ----------
    read : its tokens that were read
    slot_tokens : of the others, those whose rows of full layers the slot still had
    copied_bytes : from the host's memory
    """

    first_ms: float
    read: int
    slot_tokens: int
    copied_bytes: int


def ask(kept: KeptPrefixes, generator: Generator, ids: list[int], reply: int) -> Asked:
    """Have a prompt answered with so many tokens."""
    sampler = Sampler(SamplingOptions(TEMPERATURE, top_p=TOP_P), 1)
    before = kept.counts()
    generation = generator.start(Prompt(ids), sampler, max_tokens=reply, client="benchmark")
    list(generation)
    after = kept.counts()
    return Asked(
        1e3 * generation.first_token_s,
        len(ids) - generation.reused_tokens,
        after.placed_tokens - before.placed_tokens,
        after.copied_bytes - before.copied_bytes,
    )


def measured(
    engine: Engine, tokens: int, own: int, memory: int, repeats: int
) -> dict[str, dict[str, Any]]:
    """Times and counts of both kinds of prompts in turns, by the way.

    Parameters
    ----------
    engine : with room for two sequences
    tokens, own : of a prompt, and of its end that no other has
    memory : bytes for kept beginnings
    """
    draws = np.random.default_rng(1)

    def ids_of(count: int) -> list[int]:
        return draws.integers(3, engine.vocab_size, count).tolist()

    sequences = EngineSequences(engine)
    engines = sequences.add(), sequences.add()
    tokenizer = Tokenizer.from_buffer(shipped_file("tokenizer.json"))  # of the replies' texts
    found = {}
    for way, other, reply in (("host", 0, 1), ("slot", 1, engine.prefill_chunk + own)):
        kept = kept_prefixes(engine, memory)
        assert kept is not None, "this library can copy rows"
        generators = [
            Generator(one, tokenizer, frozenset(), beginnings=kept.of(one)) for one in engines
        ]
        shared = ids_of(tokens - own)
        whole = ask(kept, generators[0], shared + ids_of(own), reply)
        alone, others = [], []
        for _ in range(repeats + 1):
            others.append(ask(kept, generators[other], ids_of(own), 1))
            alone.append(ask(kept, generators[0], shared + ids_of(own), reply))
        times = {
            name: summary([one.first_ms for one in asked[1:]])
            for name, asked in (("kept_ms", alone), ("own_ms", others))
        }
        found[way] = {
            "whole_ms": round(whole.first_ms, 3),
            **times,
            "ratio": round(times["kept_ms"]["median"] / times["own_ms"]["median"], 3),
            "kept": [_counts(one) for one in alone],
            "kept_bytes": kept.counts().nbytes,
        }
    return found


def _counts(asked: Asked) -> dict[str, int]:
    counts = asdict(asked)
    del counts["first_ms"]
    return counts


def main() -> None:
    """Measure one package."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--package", type=Path, required=True, help="its library is enough")
    parser.add_argument("--model", required=True, help="name in the result line")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--own", type=int, default=100, help="tokens that are not shared")
    parser.add_argument("--memory", type=int, default=8 << 30, help="bytes for kept beginnings")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--commit", help="of the code that runs, where this is no checkout")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    about = environment(options.commit)
    with tempfile.TemporaryDirectory() as folder:
        package = synthetic_package(options.package, Path(folder))
        chunk = package.chat_config.prefill_chunk_size
        length = options.tokens + chunk + options.own + 256
        engine = Engine(package, context_length=length, sequences=2)
        line = {
            "benchmark": "native",
            **about,
            "model": options.model,
            "target": package.device,
            "weights": "synthetic",
            "device": device_name(package.device),
            "measure": "kept prefix",
            "tokens": options.tokens,
            "own": options.own,
            "chunk": engine.prefill_chunk,
            **measured(engine, options.tokens, options.own, options.memory, options.repeats),
        }
    append_line(line, options.results)


if __name__ == "__main__":
    main()

"""Times the first token of prompts whose beginning is kept; appends a result line.

As `gemma4-serve` does it: a prompt of `--tokens` is read once, another conversation takes the
sequence over, and then come prompts that share all but the last `--own` tokens with the first.
Beside them, prompts of `--own` tokens alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmarks.device_facts import device_name
from benchmarks.environment import environment
from benchmarks.native_options import RESULTS
from benchmarks.samples import summary
from benchmarks.synthetic_package import synthetic_package
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.engine.generation import Generator
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.prefixes.kept import kept_prefixes
from gemma4_compile.runtime.sampling.sampling import Sampler, SamplingOptions
from gemma4_compile.tiny.checkpoint import shipped_file

TEMPERATURE, TOP_P = 1.0, 0.95


def _first_token(generator: Generator, ids: list[int]) -> tuple[float, int]:
    """Milliseconds to the first token, and how many tokens of the prompt were not read again."""
    sampler = Sampler(SamplingOptions(TEMPERATURE, top_p=TOP_P), 1)
    begin = time.perf_counter()
    reply = generator.start(Prompt(ids), sampler, max_tokens=1, client="benchmark")
    list(reply)
    return 1e3 * (time.perf_counter() - begin), reply.reused_tokens


def measured(engine: Engine, options: argparse.Namespace) -> dict[str, Any]:
    """The times of both kinds of prompts, in turns."""
    kept = kept_prefixes(engine, options.memory)
    assert kept is not None, "this library can copy rows"
    tokenizer = Tokenizer.from_buffer(shipped_file("tokenizer.json"))  # the first token's text
    generator = Generator(engine, tokenizer, frozenset(), beginnings=kept.of(engine))
    draws = np.random.default_rng(1)

    def ids_of(count: int) -> list[int]:
        return draws.integers(3, engine.vocab_size, count).tolist()

    shared = ids_of(options.tokens - options.own)
    whole, _ = _first_token(generator, shared + ids_of(options.own))
    times: dict[str, list[float]] = {"kept_ms": [], "own_ms": []}
    reused = []
    for _ in range(options.repeats + 1):
        times["own_ms"].append(_first_token(generator, ids_of(options.own))[0])
        spent, held = _first_token(generator, shared + ids_of(options.own))
        times["kept_ms"].append(spent)
        reused.append(held)
    result: dict[str, Any] = {name: summary(values[1:]) for name, values in times.items()}
    ratio = result["kept_ms"]["median"] / result["own_ms"]["median"]
    return {
        "measure": "kept prefix",
        "tokens": options.tokens,
        "own": options.own,
        "chunk": engine.prefill_chunk,
        "reused": reused[1:],
        "whole_ms": round(whole, 3),
        **result,
        "ratio": round(ratio, 3),
        "kept_bytes": kept.counts().nbytes,
    }


def main() -> None:
    """Measure one package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", type=Path, required=True, help="its library is enough")
    parser.add_argument("--model", required=True, help="name in the result line")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--own", type=int, default=100, help="tokens that are not shared")
    parser.add_argument("--memory", type=int, default=8 << 30, help="bytes for kept beginnings")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--commit", help="of the code that runs, where this is no checkout")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    about = environment()
    if options.commit is not None:
        del about["uncommitted_changes"]  # not known
        about["commit"] = options.commit
    with tempfile.TemporaryDirectory() as folder:
        package = synthetic_package(options.package, Path(folder))
        engine = Engine(package, context_length=options.tokens + 256)
        line = {
            "benchmark": "native",
            **about,
            "model": options.model,
            "target": package.device,
            "weights": "synthetic",
            "device": device_name(package.device),
            **measured(engine, options),
        }
    text = json.dumps(line)
    print(text, file=sys.stderr)
    with options.results.open("a") as file:
        file.write(text + "\n")


if __name__ == "__main__":
    main()

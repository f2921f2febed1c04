"""Measures llama.cpp's `llama-bench` on a GGUF file; prints one JSON line per figure.

One call loads the model once: decode of `--tokens` after each of `--context`, and prefill of
`--prefill` tokens from an empty state. `llama-bench` measures every pair of lengths; prefill after
a context is left out here. Batch 1, all layers on the device.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from benchmarks.samples import summary


def command(arguments: argparse.Namespace) -> list[str]:
    """Command that is run: `llama-bench` with its output as one JSON object per line."""
    lengths = ",".join(str(length) for length in (0, *arguments.context))
    device = [] if arguments.device is None else ["-dev", arguments.device]
    return [
        str(arguments.bench),
        *("-m", str(arguments.gguf)),
        *("-p", str(arguments.prefill), "-n", str(arguments.tokens), "-d", lengths),
        *("-ngl", "99", "-fa", arguments.flash_attention, "-r", str(arguments.repeats)),
        *("-ub", str(arguments.chunk)),
        *device,
        *("-o", "jsonl", "--progress"),
    ]


def without_folders(words: list[str]) -> str:
    """The command as a line, with files by their names only."""
    return shlex.join(Path(word).name for word in words)


def figure(row: Mapping[str, Any], contexts: list[int]) -> dict[str, Any] | None:
    """Result line from a line of `llama-bench`; None for a length that was not asked for."""
    prompt, generated, depth = row["n_prompt"], row["n_gen"], row["n_depth"]
    if generated and not prompt and depth in contexts:
        lengths = {"measure": "decode", "context": depth, "tokens_per_sample": generated}
    elif prompt and not generated and depth == 0:
        lengths = {"measure": "prefill", "tokens": prompt, "prefill_chunk": row["n_ubatch"]}
    else:
        return None
    tokens = prompt + generated
    return {
        "backend": row["backends"],
        "device": row["gpu_info"],
        "peer_model": row["model_type"],
        "weight_bytes": row["model_size"],
        "flash_attention": row["flash_attn"],
        "kv_types": [row["type_k"], row["type_v"]],
        "threads": row["n_threads"],
        **lengths,
        "ms_per_token": summary([sample / 1e6 / tokens for sample in row["samples_ns"]]),
        "tokens_per_second": round(tokens * 1e9 / statistics.median(row["samples_ns"]), 1),
    }


def measured(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The figures, each as soon as `llama-bench` has it.

    Raises
    ------
    subprocess.CalledProcessError
        If `llama-bench` fails; what it measured before that was given out.
    """
    words = command(arguments)
    about = environment()
    if arguments.commit is not None:
        about["commit"] = arguments.commit
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if not line.startswith("{"):
                continue
            row = json.loads(line)
            found = figure(row, arguments.context)
            if found is not None:
                versions = {"llama.cpp": f"{arguments.version} ({row['build_commit']})"}
                yield {
                    "benchmark": "llama_cpp",
                    **about,
                    "versions": versions,
                    "model": arguments.model,
                    "recipe": "Q4_0",
                    "weights": "synthetic",
                    "driver": arguments.driver,
                    **found,
                    "command": without_folders(words),
                }
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words)


def lengths(text: str) -> list[int]:
    """Numbers between commas."""
    return [int(number) for number in text.split(",")]


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", type=Path, required=True, help="the program `llama-bench`")
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--model", required=True, help="the released size that the file is of")
    parser.add_argument("--device", help="as `llama-bench --list-devices` names it")
    parser.add_argument("--version", default="0.5.0", help="llama.cpp's release")
    parser.add_argument("--driver", help="the GPU driver's, for the lines")
    parser.add_argument("--commit", help="of this repository, where there is no checkout")
    parser.add_argument("--context", type=lengths, default=[32, 1024])
    parser.add_argument("--prefill", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--chunk", type=int, default=512, help="tokens of a prefill's chunk")
    parser.add_argument("--flash-attention", default="auto", help="on, off, auto, or several")
    return parser.parse_args(words)


def main() -> None:
    """Run and print."""
    try:
        for line in measured(parse()):
            print(json.dumps(line), flush=True)
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

"""Options of `native.py`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gemma4_compile.options.chat import AUTO, PLACES
from gemma4_compile.options.prefixes import parse_size

RESULTS = Path(__file__).resolve().parent / "results" / "native.jsonl"


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def native_options(description: str | None) -> argparse.Namespace:
    """Read them from the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--package", type=Path, required=True, help="output of gemma4-compile")
    parser.add_argument("--model", help="name in the result lines (default: the package's source)")
    parser.add_argument("--folder", type=Path, help="where random weights are written and left")
    parser.add_argument("--context", default="32,1024", help="tokens before the decoded ones")
    parser.add_argument("--at", default="", help="positions behind random keys to decode at")
    parser.add_argument("--verify", default="", help="rows of steps that check a drafter's guesses")
    parser.add_argument(
        "--sequences", default=[], type=_numbers, help="sequences that share steps, as 1,4,8"
    )
    parser.add_argument("--drafts", default="", help="a drafter's guesses in rounds that are timed")
    parser.add_argument(
        "--replies", type=int, default=0, help="tokens of replies with guesses (--drafts), if any"
    )
    parser.add_argument(
        "--prefill", default=[1024], type=_numbers, help="lengths of prompts, as 32,1024,7680"
    )
    parser.add_argument("--capacity", type=int, default=8192, help="positions of the state")
    parser.add_argument("--tokens", type=int, default=32, help="decoded in a sample")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--experts", default=AUTO, help="places of experts as of gemma4-chat, each measured"
    )
    parser.add_argument(
        "--expert-cache",
        default=[0],
        type=lambda text: [parse_size(one) for one in text.split(",")],
        help="of the device, for those of the host's experts that are read most, as 0,1GB,4GB",
    )
    parser.add_argument(
        "--skew", type=float, default=0.0, help="how unevenly random weights choose experts (0)"
    )
    parser.add_argument("--graphs", choices=("on", "off", "both"), default="on", help="CUDA graphs")
    parser.add_argument("--ple", choices=(*PLACES, "both"), help="where the per-layer table is")
    parser.add_argument(
        "--commit", help="of the library and of the code that runs, where this is no checkout"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()

"""Measures a package for webgpu on Dawn in Node; appends a line per measurement to a results file.

The package may hold its library only: the weights are synthetic and made on the device. Without
`--package` the library of `--model` is compiled first. What is measured: ../README.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE.parent / "results" / "webgpu.jsonl"


def compile_library(model: str, quant: str, context: int, output: Path) -> None:
    """Compile a model's library from its config, in a process of its own."""
    command = [sys.executable, "-m", "gemma4_compile", model, "--only", "library"]
    command += ["--target", "webgpu", "--quant", quant, "--context", str(context)]
    command += ["-o", str(output)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def commit() -> str:
    """Return the commit, with a `+` after it if tracked files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + ("+" if changed else "")


def measure(package: Path, arguments: list[str]) -> tuple[list[str], int]:
    """Run the Node part; return its result lines and exit status. Its tables go to stderr."""
    node = shutil.which("node")
    if node is None:
        raise SystemExit("error: `node` was not found\n\nhint: Node 20 or newer, and `make setup`")
    command = [node, str(HERE / "bench.mjs"), "--package", str(package), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    for line in lines:
        json.loads(line)
    return lines, done.returncode


def main() -> None:
    """Compile if asked, measure, append."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Other options go to bench.mjs, which lists them at its top."
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--package", type=Path, help="output of gemma4-compile for webgpu")
    source.add_argument("--model", help="compile this one's library first, as gemma4-compile does")
    parser.add_argument("--quant", default="q4f16", help="of --model (default: %(default)s)")
    parser.add_argument(
        "--compiled-context", type=int, default=8192, metavar="N", help="of --model: its --context"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    options, rest = parser.parse_known_args()
    rest = ["--commit", commit(), *rest]
    with tempfile.TemporaryDirectory(prefix="gemma4-bench-") as directory:
        package = options.package
        if package is None:
            package = Path(directory, "package")
            compile_library(options.model, options.quant, options.compiled_context, package)
        lines, status = measure(package, rest)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with options.results.open("a", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)
    print(f"{len(lines)} lines appended to {options.results}")
    sys.exit(status)


if __name__ == "__main__":
    main()

"""The demo: compiles a model for WebGPU, builds the page, lets `gemma4-serve` serve both.

With `--headless` it asks a question in headless Chromium instead, and `tiny` one about a picture,
prints the answers and ends; the exit code is 0 if the model answered and saw what is there.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE / "dist"
TINY = "tiny"
PICTURE = HERE / "public" / "samples" / "shapes.png"
ABOUT_PICTURE = "What is in the picture?"
SEEN = "A red circle and a blue square."


class Failure(Exception):
    """A step that went wrong: what, and what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def run(command: Sequence[str], directory: Path, what: str) -> None:
    """Run a command whose output the user sees."""
    print(f"{what}: {' '.join(command)}", file=sys.stderr, flush=True)
    done = subprocess.run(command, cwd=directory, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise Failure(f"{what} failed with exit code {done.returncode}", "its messages are above")


def install_page() -> None:
    """Install the page's npm packages where they are missing or older than the lock file."""
    if shutil.which("npm") is None:
        raise Failure("npm is not installed", "install Node 20.19 or newer (of 22: 22.12 or newer)")
    lock, installed = HERE / "package-lock.json", HERE / "node_modules" / ".package-lock.json"
    if not installed.is_file() or installed.stat().st_mtime < lock.stat().st_mtime:
        run(["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], HERE, "npm packages")


def compile_package(model: str, quantization: str, modalities: Sequence[str], output: Path) -> None:
    """Compile for WebGPU into `output`; a package that lies there is made anew."""
    command = [sys.executable, "-m", "gemma4_compile", model, "--modalities", *modalities]
    command += ["--target", "webgpu", "--quant", quantization, "-o", str(output)]
    if model == TINY:
        # One library: it runs on every device, and no device is slow with so small a model.
        command += ["--drafter", TINY, "--libraries", "default"]
    run(command, Path.cwd(), "compile")


def serve(package: Path, port: int, *, opens: bool) -> subprocess.Popen[str]:
    """Start `gemma4-serve` on the package and the built page."""
    command = [sys.executable, "-m", "gemma4_compile.runtime.serve", str(package)]
    command += ["--page", str(PAGE), "--port", str(port), "--open" if opens else "--no-open"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8")


def ask(url: str, question: str, *, sees: bool) -> int:
    """Ask in headless Chromium, print the answers, and return the exit code."""
    command = ["node", str(HERE / "ask.mjs"), url, question]
    if sees:
        command += ["--file", str(PICTURE), ABOUT_PICTURE]
    done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=False)
    print(done.stdout, end="", flush=True)
    if done.returncode == 0 and sees and done.stdout.splitlines()[-1] != SEEN:
        raise Failure(f"the model did not see `{SEEN}` in {PICTURE}", "its answers are above")
    return done.returncode


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=TINY, help="what to compile (default: %(default)s)")
    parser.add_argument(
        "--modalities", help="what it takes (default: all that `tiny` does; text of other models)"
    )
    parser.add_argument(
        "--quant",
        default="q4f16",
        help="recipe (default: %(default)s)",
    )
    parser.add_argument("--output", type=Path, default=Path("artifacts/demo"), help="the package")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--headless", action="store_true", help="ask and end")
    parser.add_argument("--question", default="Who are you?", help="for --headless")
    return parser.parse_args()


def main() -> None:
    """Run every step."""
    options = arguments()
    sees = options.model == TINY and options.modalities is None
    modalities = [options.modalities or ("all" if sees else "text")]
    if sees and options.headless:  # a device in software takes a minute for the usual 280
        modalities += ["--image-tokens", "70"]
    install_page()
    compile_package(options.model, options.quant, modalities, options.output)
    run(["npm", "run", "--silent", "build"], HERE, "page")
    port = 0 if options.headless else options.port
    opens = not options.headless and sys.stdout.isatty()
    with serve(options.output, port, opens=opens) as server:
        assert server.stdout is not None, "asked for above"
        url = server.stdout.readline().strip()
        if not url:
            hint = "its messages are above; another port: make demo PORT=8001"
            raise Failure("gemma4-serve did not start", hint)
        try:
            if options.headless:
                sys.exit(ask(url, options.question, sees=sees))
            print(f"Open {url} (Ctrl+C ends)", flush=True)
            server.wait()
        finally:
            server.terminate()


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        print(f"error: {failure}\nhint: {failure.hint}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)

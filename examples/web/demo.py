"""The demo: compiles a model for WebGPU, builds the page, serves both on localhost.

With `--headless` it asks one question in headless Chromium instead, prints the answer and ends; the
exit code is 0 if the model answered.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).resolve().parent
PAGE = HERE / "dist"
PACKAGE_PATH = "/package/"


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
        raise Failure("npm is not installed", "install Node 20.19 or newer")
    lock, installed = HERE / "package-lock.json", HERE / "node_modules" / ".package-lock.json"
    if not installed.is_file() or installed.stat().st_mtime < lock.stat().st_mtime:
        run(["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], HERE, "npm packages")


def compile_package(model: str, quantization: str, output: Path) -> None:
    """Compile for WebGPU into `output`; a package that lies there is made anew."""
    command = [sys.executable, "-m", "gemma4_compile", model]
    command += ["--target", "webgpu", "--quant", quantization, "-o", str(output)]
    run(command, Path.cwd(), "compile")


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the built page, and the package below `PACKAGE_PATH`."""

    extensions_map = {  # noqa: RUF012  (as the base class has it)
        ".html": "text/html",
        ".js": "text/javascript",
        ".css": "text/css",
        ".json": "application/json",
        ".svg": "image/svg+xml",
        ".wasm": "application/wasm",
        "": "application/octet-stream",
    }

    def __init__(self, *args: object, package: Path, **kwargs: object) -> None:
        self.package = package
        super().__init__(*args, directory=str(PAGE), **kwargs)  # type: ignore[arg-type]

    def translate_path(self, path: str) -> str:
        """Map a URL to a file; what lies in the package has no sub-folders."""
        plain = unquote(urlsplit(path).path)
        if plain.startswith(PACKAGE_PATH):
            return str(self.package / Path(plain).name)
        return super().translate_path(path)

    def end_headers(self) -> None:
        """Keep browsers from using files of an earlier compilation."""
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Stay silent: the page shows the progress."""


def serve(package: Path, port: int) -> http.server.ThreadingHTTPServer:
    """Start serving in a thread of its own; port 0 takes a free one."""
    handler = functools.partial(Handler, package=package.resolve())
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        message = f"port {port} cannot be used: {error.strerror}"
        raise Failure(message, "choose another one with --port") from error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny", help="what to compile (default: %(default)s)")
    parser.add_argument(
        "--quant",
        default="q4f32",
        help="recipe; q4f32 runs on every WebGPU device (default: %(default)s)",
    )
    parser.add_argument("--output", type=Path, default=Path("artifacts/demo"), help="the package")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--headless", action="store_true", help="ask one question and end")
    parser.add_argument("--question", default="Who are you?", help="for --headless")
    return parser.parse_args()


def main() -> None:
    """Run every step."""
    options = arguments()
    install_page()
    compile_package(options.model, options.quant, options.output)
    run(["npm", "run", "--silent", "build"], HERE, "page")
    server = serve(options.output, 0 if options.headless else options.port)
    url = f"http://localhost:{server.server_address[1]}/?package={PACKAGE_PATH}"
    if options.headless:
        command = ["node", str(HERE / "ask.mjs"), url, options.question]
        sys.exit(subprocess.run(command, check=False).returncode)
    print(f"Open {url} (Ctrl+C ends)", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        print(f"error: {failure}\nhint: {failure.hint}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)

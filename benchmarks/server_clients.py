"""Many streaming clients of one gemma4-serve, of a package that runs here; appends a result line.

By default 64 clients that share 5,000 requests to `tiny` on the CPU.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.environment import ROOT, environment

RESULTS = ROOT / "benchmarks" / "results" / "server_clients.jsonl"
START = "from gemma4_compile.cli.start import run_serve; run_serve()"


@contextmanager
def running(package: Path, options: list[str]) -> Iterator[tuple[str, int, int]]:
    """Host, port and process of a server, until the end."""
    command = [sys.executable, "-c", START, str(package), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None, "piped above"
            address = urlsplit(process.stdout.readline().strip())
            if address.hostname is None or address.port is None:
                raise SystemExit("gemma4-serve did not start: its error is above")
            yield address.hostname, address.port, process.pid
        finally:
            process.terminate()


def resident_bytes(process: int) -> int:
    """What a process holds in memory now (Linux)."""
    lines = Path(f"/proc/{process}/status").read_text("ascii").splitlines()
    (found,) = (line for line in lines if line.startswith("VmRSS"))
    return int(found.split()[1]) * 1024


@dataclass
class Clients:
    """Requests to a server, and what came of them."""

    host: str
    port: int
    first_ms: list[float] = field(default_factory=list)
    whole_ms: list[float] = field(default_factory=list)
    health_ms: list[float] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)

    def ask(self, number: int) -> None:
        """One streamed reply."""
        text = f"What is {number % 50} plus {number % 37}?"
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "stream": True}
        begin = time.perf_counter()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=600)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        last, words = b"", 0
        for line in response:
            if b'"content": "' in line and b'"content": ""' not in line:
                words += 1
                if words == 1:
                    self.first_ms.append((time.perf_counter() - begin) * 1e3)
            last = line.strip() or last
        connection.close()
        self.whole_ms.append((time.perf_counter() - begin) * 1e3)
        self.ended["whole" if last == b"data: [DONE]" else f"status {response.status}"] += 1

    def watch(self, until: threading.Event) -> None:
        """Ask for /health ten times a second."""
        while not until.wait(0.1):
            begin = time.perf_counter()
            connection = http.client.HTTPConnection(self.host, self.port, timeout=600)
            connection.request("GET", "/health")
            self.ended[f"health {connection.getresponse().status}"] += 1
            connection.close()
            self.health_ms.append((time.perf_counter() - begin) * 1e3)


def percentiles(values: list[float]) -> dict[str, float]:
    """The middle, what 99 of a hundred are below, and the greatest, in milliseconds."""
    ordered = sorted(values)
    at = {"median": 0.5, "p99": 0.99}
    found = {name: ordered[int(share * (len(ordered) - 1))] for name, share in at.items()}
    return {name: round(value, 1) for name, value in {**found, "max": ordered[-1]}.items()}


def measure(package: Path, clients: int, requests: int, options: list[str]) -> dict[str, object]:
    """The fields of a result line."""
    with running(package, options) as (host, port, process):
        asked, ended = Clients(host, port), threading.Event()
        watcher = threading.Thread(target=asked.watch, args=(ended,))
        watcher.start()
        memory, begin = [resident_bytes(process)], time.perf_counter()
        tenth = max(requests // 10, 1)
        with ThreadPoolExecutor(clients) as pool:
            for number, _ in enumerate(pool.map(asked.ask, range(requests)), 1):
                if number % tenth == 0:
                    memory.append(resident_bytes(process))
        seconds = time.perf_counter() - begin
        ended.set()
        watcher.join()
    return {
        "clients": clients,
        "requests": requests,
        "options": options,
        "seconds": round(seconds, 1),
        "ended": dict(asked.ended),
        "first_ms": percentiles(asked.first_ms),
        "whole_ms": percentiles(asked.whole_ms),
        "health_ms": percentiles(asked.health_ms),
        "resident_bytes": memory,
    }


def main() -> None:
    """Parse arguments and append a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", type=Path, help="by default `tiny` in f32, compiled for it")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=["--queue", "100"])
    options = parser.parse_args()
    facts = environment()
    with tempfile.TemporaryDirectory() as scratch:
        package = options.package
        if package is None:
            package = Path(scratch) / "tiny"
            command = ["-m", "gemma4_compile", "tiny", "--target", "cpu", "--quant", "f32"]
            subprocess.run([sys.executable, *command, "-o", str(package)], check=True)
        line = measure(package, options.clients, options.requests, options.options)
    text = json.dumps({**facts, "package": package.name, **line})
    print(text)
    with options.results.open("a", encoding="utf-8") as file:
        file.write(text + "\n")


if __name__ == "__main__":
    main()

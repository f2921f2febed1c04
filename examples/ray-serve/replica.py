"""One gemma4-serve as a child process, and requests passed on to it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp

START = """
import ctypes, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGINT)  # PR_SET_PDEATHSIG
from gemma4_compile.cli.start import run_serve
sys.argv[0] = "gemma4-serve"
run_serve()
"""
"""On Linux it ends with its parent, however that ends: nobody else would free the GPU's memory."""
HOP_BY_HOP = frozenset(
    (
        *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
        *("proxy-authenticate", "proxy-authorization"),
        *("content-length", "host"),  # of the message as it is sent here, and of who is asked
    )
)
"""Headers of one connection, which no proxy passes on (RFC 9110, section 7.6.1)."""
GRACE_S = 20.0


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that are the message's own, names in lower case."""
    own = {name.lower(): value for name, value in headers.items()}
    named = {name.strip().lower() for name in own.get("connection", "").split(",")}
    return {name: value for name, value in own.items() if name not in HOP_BY_HOP | named}


class Replica:
    """A server on a free port of this machine.

    Attributes
    ----------
    address : where it listens, without a path; empty before `start`
    """

    def __init__(self, package: Path, options: Sequence[str] = ()) -> None:
        """Prepare; `options` are gemma4-serve's."""
        self.address = ""
        self._command = [
            sys.executable,
            "-c",
            START,
            str(package),
            "--port",
            "0",
            "--no-open",
            *options,
        ]
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Return once it answers.

        Raises
        ------
        RuntimeError
            If it ends before: its own error is on stderr, in the log of this process.
        """
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
        assert self._process.stdout is not None, "piped above"
        line = await self._process.stdout.readline()
        if not line:
            code = await self._process.wait()
            raise RuntimeError(
                f"gemma4-serve ended with {code} before it answered: see its error above"
            )
        self.listen_to(line.decode().strip())

    def listen_to(self, address: str) -> None:
        """Pass requests on to a server that runs at an address."""
        self.address = address
        # A reply may take as long as it takes, and as many may run as the server has places for.
        # Bodies stay in the encoding that their headers name.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        )

    async def check(self) -> None:
        """Raise RuntimeError where it cannot answer any more; what health checks ask."""
        if self._process is None or self._process.returncode is not None:
            raise RuntimeError("gemma4-serve has ended")
        async with self._client().get(f"{self.address}/health") as response:
            if response.status != 200:
                raise RuntimeError(f"gemma4-serve is not well: {await response.text()}")

    async def answer(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[tuple[int, dict[str, str]] | bytes]:
        """Yield the status and headers, then the body as it comes.

        Who stops reading closes the connection, so that the generation ends.
        """
        asked = self._client().request(
            method,
            f"{self.address}{path}",
            headers=passed_on(headers),
            data=body,
            allow_redirects=False,  # that is the client's to do
        )
        async with asked as response:
            yield response.status, passed_on(response.headers)
            async for piece in response.content.iter_any():
                yield piece

    async def stop(self) -> None:
        """End it as Ctrl-C does, and wait for that."""
        if self._session is not None:
            await self._session.close()
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT if os.name == "posix" else signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), GRACE_S)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("gemma4-serve was not started")
        return self._session

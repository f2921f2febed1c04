"""The near end of `confined.schemas`: starts it, and speaks with its processes."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from gemma4_compile.confined import frames, limits, schemas
from gemma4_compile.system import sockets

_COMPILING = 2  # schemas at a time: each may take a core and memory until its limit
_GRACE_SECONDS = 5  # for a process that a busy machine does not let run


class SchemaRefused(Exception):
    """A schema that the library refuses, or that breaks a limit or the library itself."""


class SchemaServerError(Exception):
    """The library itself does not start."""


class SchemaServer:
    """The process that holds the tokenizer; started when it is needed, and anew if it ends.

    Where processes do not fork, each schema has one, which ends with it.
    """

    def __init__(
        self,
        tokenizer: Callable[[], str],
        vocab_size: int,
        stop_ids: Sequence[int],
        control_ids: Sequence[int] = (),
    ) -> None:
        """Prepare.

        Parameters
        ----------
        tokenizer : returns the text of `tokenizer.json`
        vocab_size : length of the logits
        stop_ids : tokens that end a reply
        control_ids : tokens that no text of a schema stands for, whatever it spells
        """
        self._tokenizer = tokenizer
        sizes = {"vocab_size": vocab_size, "stop": list(stop_ids), "control": list(control_ids)}
        self._sizes = json.dumps(sizes).encode()
        self._lock = threading.Lock()
        self._compiling = threading.Semaphore(_COMPILING)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def follow(self, schema: bytes, kind: bytes = schemas.SCHEMA) -> SchemaProcess:
        """Compile a schema, or a grammar (`kind` LARK), in a process of its own.

        Raises
        ------
        SchemaRefused
            If the library refuses it, crashes, or takes too long or too much memory.
        SchemaServerError
            If the library cannot be started.
        """
        with self._compiling:
            process = SchemaProcess(self._connect())
            process.compile(kind + schema)
        return process

    def close(self) -> None:
        """End the process; those of replies that still run end with their connections."""
        with self._lock:
            self._drop()

    def _connect(self) -> socket.socket:
        with self._lock:
            if not schemas.FORKS:
                return self._start(schemas.SINGLE)[1]  # the process ends when its connection does
            if self._process is None or self._process.poll() is not None:
                self._drop()
                self._process, self._control = self._start(schemas.FORKING)
            assert self._control is not None, "started above"
            near, far = socket.socketpair()
            with far:
                try:
                    sockets.send_descriptor(self._control, far)
                except OSError as error:
                    near.close()
                    raise SchemaServerError(f"its process has ended: {error}") from error
            return near

    def _start(self, mode: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
        near, far = socket.socketpair()
        with far:
            process = sockets.start_with(
                lambda end: limits.command("schemas", end, mode),
                far,
                limits.start_folder(),
                limits.environment(),
            )
        try:
            frames.send(near, self._sizes)
            frames.send(near, self._tokenizer().encode())
            answer = frames.receive(near)
        except (OSError, EOFError) as error:
            _end(process, near)
            raise SchemaServerError("llguidance cannot read this tokenizer") from error
        if answer[:1] != schemas.FINE:
            _end(process, near)
            message = answer[1:].decode()
            raise SchemaServerError(f"llguidance cannot read this tokenizer: {message}")
        return process, near

    def _drop(self) -> None:
        if self._process is not None and self._control is not None:
            _end(self._process, self._control)
        self._control = self._process = None


def _end(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    process.kill()
    process.wait()


class SchemaProcess:
    """Follows one schema through one reply; ends when nobody refers to it any more."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._broken = False

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.close()

    def compile(self, schema: bytes) -> None:
        """Send the schema; SchemaRefused as in `SchemaServer.follow`."""
        self._ask(schema, schemas.COMPILE_SECONDS)

    def allowed(self, last: int | None) -> bytes:
        """Bits of the tokens that may follow `last` (None: at the beginning), lowest first."""
        token_id = schemas.NO_TOKEN if last is None else last
        return self._ask(schemas.TOKEN.pack(token_id), schemas.STEP_SECONDS)

    def _ask(self, message: bytes, seconds: float) -> bytes:
        if self._broken:  # an exchange that Ctrl-C cut: what arrives now answers the one before
            raise SchemaRefused("it was interrupted")
        self._broken = True
        begin = time.monotonic()
        try:
            self._connection.settimeout(seconds + _GRACE_SECONDS)
            frames.send(self._connection, message)
            answer = frames.receive(self._connection)
        except (OSError, EOFError) as error:
            too_long = time.monotonic() - begin >= seconds
            memory = f"{schemas.MEMORY_BYTES >> 20} MiB"
            raise SchemaRefused(
                f"it takes more than {seconds} s"
                if too_long
                else f"it takes more than {memory} of memory, or breaks the library that follows it"
            ) from error
        if answer[:1] != schemas.FINE:
            raise SchemaRefused(answer[1:].decode())
        self._broken = False
        return answer[1:]

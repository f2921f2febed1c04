"""Decodes one picture, sound or video, in a process of its own.

Its decoders are native code that reads a stranger's bytes: what makes them loop, crash or take
memory ends this process alone. The file comes on stdin, open or through a pipe; a line of JSON goes
out, and the decoded bytes after it. Unlike its neighbours it imports NumPy, for sounds.
"""

from __future__ import annotations

import importlib
import io
import json
import sys
from typing import BinaryIO

from gemma4_compile.errors import Gemma4CompileError
from gemma4_compile.system.limits import limit_cpu, limit_memory, time_limit

MEMORY_BYTES = 2 << 30
SECONDS = {"picture": 20, "sound": 20, "video": 120}


def main(kind: str, options: str) -> None:
    """Decode what stdin holds; the first line out is its description or what is wrong."""
    content = b""
    try:
        limit_memory(MEMORY_BYTES)
        limit_cpu(SECONDS[kind])
        with time_limit(SECONDS[kind]):
            decoder = importlib.import_module(f"gemma4_compile.media.{kind}")
            header, content = decoder.decode(_file(), json.loads(options))
    except Gemma4CompileError as error:
        header = {"error": str(error), "hint": error.hint}
    except ImportError as error:
        header = {"missing": error.name or str(error)}
    except MemoryError:
        header = {
            "error": f"to decode this {kind} takes more than {MEMORY_BYTES >> 30} GiB of memory"
        }
    except BaseException as error:  # a fault of a decoder's binding
        header = {"error": f"this {kind} cannot be decoded: {type(error).__name__}: {error}"}
    sys.stdout.buffer.write(json.dumps(header).encode() + b"\n")
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def _file() -> BinaryIO:
    """The file; what came through a pipe is read whole, as it was in its sender's memory."""
    given = sys.stdin.buffer
    return given if given.seekable() else io.BytesIO(given.read())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

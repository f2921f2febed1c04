"""Texts that a user gives by an option or on stdin: UTF-8 of bounded length, from any file.

A pipe may stand for a file, as of a shell's `<(...)`; neither it nor a device is read without end.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gemma4_compile.errors import UsageError
from gemma4_compile.system.regular_files import MAX_JSON_BYTES, read_stream

MAX_TEXT_BYTES = MAX_JSON_BYTES
"""More than a prompt that fits into any context."""
TOO_LONG_HINT = "give a shorter text: no context holds so much"


def read_text(option: str, path: Path) -> str:
    """Text of the file that an option names; UsageError if it cannot be read or is too long."""
    try:
        return read_stream(path, MAX_TEXT_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{option}: `{path}` is not UTF-8: {error}", hint="save the text as UTF-8"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"{option}: cannot read `{path}`: {why}", hint="check the file's name"
        ) from error


def read_stdin(option: str) -> str:
    """Text of stdin; UsageError if it is too long."""
    text = sys.stdin.read(MAX_TEXT_BYTES + 1)
    if len(text) > MAX_TEXT_BYTES:
        raise UsageError(
            f"{option}: stdin has more than {MAX_TEXT_BYTES} bytes", hint=TOO_LONG_HINT
        )
    return text


def utf8(what: str, text: str) -> str:
    """Text from arguments or stdin, where bytes that the locale does not know are surrogates."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError as error:
        raise UsageError(f"{what} is not UTF-8: {error}", hint="save the text as UTF-8") from error

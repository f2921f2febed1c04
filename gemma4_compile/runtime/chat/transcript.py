"""A conversation as a JSON file: what `/save` writes and `/load` reads.

The messages have the form of OpenAI's API, so that other programs can use them. A reply that was
loaded is encoded from its text, as every client's is.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from gemma4_compile.checkpoint.json_text import parse_object
from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.system.files import force, replace_file
from gemma4_compile.system.names import check_new_name
from gemma4_compile.system.regular_files import check_regular, read_regular

FORMAT, VERSION = "gemma4-chat conversation", 1
MAX_BYTES = 16 << 20
MAX_MESSAGES = 10_000
_SHAPE = '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", ...}, ...]}'
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def save(path: Path, messages: Sequence[Message], *, replace: bool = False) -> None:
    """Write a conversation, whole or not at all.

    Parameters
    ----------
    replace : a file that is there; without it, one that is there is an error

    Raises
    ------
    ArtifactError
        If that cannot be done.
    """
    if path.name in ("", ".."):
        raise ArtifactError(
            f"cannot write `{path}`: that is a folder",
            hint="give the name of a file in a folder of yours",
        )
    plain = [{"role": message.role, "content": message.content} for message in messages]
    content = {"format": FORMAT, "version": VERSION, "messages": plain}
    text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    scratch = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}")
    try:
        check_new_name(path)
        if replace and os.path.lexists(path):
            check_regular(path.lstat())
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        with os.fdopen(os.open(scratch, flags, 0o600), "wb") as file:
            file.write(text.encode())
            file.flush()
            force(file.fileno())
        _put(scratch, path, replace=replace)
    except FileExistsError as error:
        raise ArtifactError(
            f"`{path}` is there already", hint=f"to replace it: /save --force {path}"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        why = error.strerror if isinstance(error, OSError) else error
        raise ArtifactError(
            f"cannot write `{path}`: {why}", hint="give the name of a file in a folder of yours"
        ) from error
    finally:
        with contextlib.suppress(OSError, ValueError):
            scratch.unlink()


def _put(scratch: Path, path: Path, *, replace: bool) -> None:
    """Give a written file its name; FileExistsError where that is taken."""
    if replace:
        replace_file(scratch, path)
        return
    try:
        os.link(scratch, path)  # unlike a renaming it replaces nothing
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from error
        replace_file(scratch, path)


def load(path: Path) -> list[Message]:
    """Read a conversation: an optional system message, then questions and replies in turn.

    Raises
    ------
    ArtifactError
        If there is none, or it is damaged.
    """
    try:
        content = read_regular(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ArtifactError(
            f"cannot read `{path}`: {why}", hint="give a file that /save wrote"
        ) from error
    try:
        return _messages(parse_object(content, finite=True))
    except ValueError as error:  # UnicodeDecodeError, too
        raise ArtifactError(
            f"`{path}` is no conversation: {error}", hint=f"expected {_SHAPE}"
        ) from error


def _messages(content: Mapping[str, object]) -> list[Message]:
    """The messages of a parsed file; ValueError names what is wrong with them."""
    for key, expected in (("format", FORMAT), ("version", VERSION)):
        found = content.get(key, expected)
        if type(found) is not type(expected) or found != expected:
            raise ValueError(f"`{key}`: expected {expected!r}, found {str(found)[:40]!r}")
    entries = content.get("messages")
    if not isinstance(entries, list) or not entries:
        raise ValueError("`messages` is missing, empty or no list")
    if len(entries) > MAX_MESSAGES:
        raise ValueError(f"expected at most {MAX_MESSAGES} messages, found {len(entries)}")
    messages = [_message(index, entry) for index, entry in enumerate(entries)]
    said = messages[1:] if messages[0].role == "system" else messages
    for index, message in enumerate(said, len(messages) - len(said)):
        expected = "assistant" if (index - len(messages) + len(said)) % 2 else "user"
        if message.role != expected:
            raise ValueError(f"message {index}: expected role {expected}, found {message.role}")
    if len(said) % 2:
        raise ValueError("the last question has no reply")
    return messages


def _message(index: int, entry: object) -> Message:
    if not isinstance(entry, dict):
        raise ValueError(f"message {index} is no object")
    role, content = entry.get("role"), entry.get("content")
    if role not in ("system", "user", "assistant"):
        raise ValueError(f"message {index}: unknown role {str(role)[:40]!r}")
    if not isinstance(content, str):
        raise ValueError(f"message {index}: `content` is no text")
    if entry.get("tool_calls"):
        raise ValueError(f"message {index} calls tools, which this chat has none of")
    return Message(role, content)

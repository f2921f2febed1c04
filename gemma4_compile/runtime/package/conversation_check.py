"""Check that a package's tokenizer and chat template hold a conversation, once for each pair."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path

from gemma4_compile import __version__
from gemma4_compile.confined.conversation import ConversationError, try_conversation
from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.package.notes import read_note, write_note
from gemma4_compile.system.regular_files import MAX_TOKENIZER_BYTES, read_regular

_NOTES = "tried-conversations"
_MOST_REMEMBERED = 500
_tried_here: set[str] = set()


def check_conversation(
    tokenizer: Path,
    template: str | None,
    special_tokens: Mapping[str, str],
    vocab_size: int,
    tool_use: str | None = None,
) -> None:
    """Try them, unless the same ones were tried before on this machine.

    Parameters are those of `try_conversation`.

    Raises
    ------
    ArtifactError
        If they cannot hold a conversation, or something was put in the place of what is remembered.
    """
    try:
        content = read_regular(tokenizer, MAX_TOKENIZER_BYTES)
    except OSError as error:
        raise ArtifactError(
            f"cannot read `{tokenizer}`: {error.strerror}", hint="compile the package again"
        ) from error
    versions = [__version__, *map(importlib.metadata.version, ("tokenizers", "jinja2"))]
    about = json.dumps(
        [versions, template, tool_use, dict(special_tokens), vocab_size], sort_keys=True
    )
    digest = hashlib.sha256(about.encode())
    digest.update(content)
    key = digest.hexdigest()
    if key in _tried_here or read_note(_NOTES, key, 0) is not None:
        return
    try:
        try_conversation(tokenizer, template, special_tokens, vocab_size, tool_use)
    except ConversationError as error:
        raise ArtifactError(f"`{tokenizer.parent}`: {error}", hint=error.hint) from error
    _tried_here.add(key)
    write_note(_NOTES, key, b"", _MOST_REMEMBERED)

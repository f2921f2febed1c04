"""Tries a tokenizer and a chat template on a short conversation, in a process of its own.

Both are programs that a stranger wrote: regular expressions, steps that replace text by more text,
loops and macros. What takes too long, takes all memory, panics or makes no prompt is found here,
before a package is made of it or its weights are loaded.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from gemma4_compile.chat_template import ChatTemplate
from gemma4_compile.confined.limits import command, limit_memory, start_folder, time_limit
from gemma4_compile.errors import Gemma4CompileError, is_panic
from gemma4_compile.regular_files import MAX_TOKENIZER_BYTES, read_regular
from gemma4_compile.types import JsonObject

LOAD_SECONDS = 60  # five million words take ten
CONVERSATION_SECONDS = 10
MEMORY_BYTES = 3 << 30
_GRACE_SECONDS = 10  # until the process runs, and for one that a busy machine does not let run
_MOST_TOKENS = 4096  # of a conversation of a few words
_TRIED_IDS = 2048
_WORDS = ("Hello", "12 + 34 = 46", "Grüße, 你好 🙂", "  \n\n\t", "a" * 400, "x.y(z)[0];")


class ConversationError(Gemma4CompileError):
    """Tokenizer and chat template cannot hold a conversation."""


@dataclass(frozen=True)
class _Said:
    role: str
    content: str

    def for_template(self) -> JsonObject:
        return {"role": self.role, "content": self.content}


_CONVERSATIONS: tuple[tuple[_Said, ...], ...] = (
    (_Said("user", "Hello"),),
    (_Said("user", "What is 12 plus 34?"), _Said("assistant", "46."), _Said("user", "Why?")),
)


def load_tokenizer(path: Path) -> Tokenizer:
    """Load `tokenizer.json`; it cuts and fills nothing, whatever the file asks, as transformers.

    Raises
    ------
    ConversationError
        If it cannot be loaded.
    """
    try:
        tokenizer = Tokenizer.from_buffer(read_regular(path, MAX_TOKENIZER_BYTES))
        tokenizer.no_truncation()
        tokenizer.no_padding()
    except Exception as error:  # tokenizers raises no narrower class
        raise ConversationError(f"cannot load the tokenizer `{path}`: {error}") from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise ConversationError(f"cannot load the tokenizer `{path}`: {error}") from error
    return tokenizer


def try_conversation(
    tokenizer: Path, template: str | None, special_tokens: Mapping[str, str], vocab_size: int
) -> None:
    """Hold a short conversation, within limits of time and memory.

    Parameters
    ----------
    tokenizer : a `tokenizer.json`
    template : source of the chat template; None: the tokenizer alone is tried
    special_tokens : `bos_token` and its like, as the template may name them
    vocab_size : tokens that the model has

    Raises
    ------
    ConversationError
        If that cannot be done; the message gives the reason.
    """
    request = {
        "tokenizer": str(tokenizer.absolute()),
        "template": template,
        "special_tokens": dict(special_tokens),
        "vocab_size": vocab_size,
    }
    try:
        done = subprocess.run(
            command("conversation"),
            cwd=start_folder(),
            input=json.dumps(request).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # panics; the process reports them itself
            timeout=LOAD_SECONDS + CONVERSATION_SECONDS + _GRACE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _failed(f"it takes more than {LOAD_SECONDS} s") from error
    if done.returncode == -signal.SIGALRM:
        raise _failed(f"it takes more than {LOAD_SECONDS} s to load, or {CONVERSATION_SECONDS} s")
    try:
        why = json.loads(done.stdout)
    except ValueError:
        why = f"it takes more than {MEMORY_BYTES >> 30} GiB of memory, or breaks `tokenizers`"
    if why is not None:
        raise _failed(why)


def _failed(why: str) -> ConversationError:
    return ConversationError(
        f"tokenizer and chat template cannot hold a short conversation: {why}",
        hint="take both files of the original checkpoint",
    )


def main() -> None:
    """Do it: the request comes as JSON, the answer is null or what is wrong."""
    request = json.load(sys.stdin)
    limit_memory(MEMORY_BYTES)
    try:
        _try(request)
        why = None
    except Gemma4CompileError as error:
        why = str(error)
    except BaseException as error:
        why = f"{type(error).__name__}: {error}"
    json.dump(why, sys.stdout)


def _try(request: JsonObject) -> None:
    with time_limit(LOAD_SECONDS):
        tokenizer = load_tokenizer(Path(request["tokenizer"]))
    with time_limit(CONVERSATION_SECONDS):
        texts = list(_WORDS)
        if request["template"] is not None:
            template = ChatTemplate(request["template"], request["special_tokens"])
            texts += [template.render(messages) for messages in _CONVERSATIONS]
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            _check_ids(ids, text, request["vocab_size"])
            tokenizer.decode(ids, skip_special_tokens=True)
        _decode(tokenizer, request["vocab_size"])


def _check_ids(ids: Sequence[int], text: str, vocab_size: int) -> None:
    if not ids and text.strip():
        raise ConversationError(f"the tokenizer makes no tokens of {text[:40]!r}")
    if len(ids) > _MOST_TOKENS:
        raise ConversationError(f"{len(ids)} tokens for a conversation of a few words")
    if max(ids, default=0) >= vocab_size:
        raise ConversationError(f"token id {max(ids)}, and the model has {vocab_size} tokens")


def _decode(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Decode tokens from everywhere in the vocabulary, alone and by four, as a reply is."""
    step = max(vocab_size // _TRIED_IDS, 1)
    ids = list(range(0, vocab_size, step))
    for begin in range(0, len(ids), 4):
        tokenizer.decode(ids[begin : begin + 4], skip_special_tokens=True)
        tokenizer.decode(ids[begin : begin + 1], skip_special_tokens=False)


if __name__ == "__main__":
    main()

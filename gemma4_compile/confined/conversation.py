"""Tries a tokenizer and a chat template on a short conversation, in a process of its own.

Both are programs that a stranger wrote: regular expressions, steps that replace text by more text,
loops and macros. What takes too long, takes all memory, panics or makes no prompt is found here,
before a package is made of it or its weights are loaded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from gemma4_compile.confined.dialogues import DIALOGUES, NEEDED, Dialogue
from gemma4_compile.confined.limits import command, environment, start_folder
from gemma4_compile.errors import Gemma4CompileError, UsageError, is_panic
from gemma4_compile.system.limits import limit_memory, time_limit, took_too_long
from gemma4_compile.system.log_lines import process_noted
from gemma4_compile.system.regular_files import MAX_TOKENIZER_BYTES, read_regular
from gemma4_compile.template.chat_template import ChatTemplate
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
class Trial:
    """What the chat template made of the dialogues that were tried; nothing where there is none.

    Attributes
    ----------
    prompts : text by dialogue; None where the template refuses it
    token_ids : of the dialogues that every template has to take
    """

    prompts: Mapping[str, str | None] = field(default_factory=dict)
    token_ids: Mapping[str, Sequence[int]] = field(default_factory=dict)


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
    tokenizer: Path,
    template: str | None,
    special_tokens: Mapping[str, str],
    vocab_size: int,
    tool_use: str | None = None,
) -> Trial:
    """Hold short conversations, within limits of time and memory.

    Parameters
    ----------
    tokenizer : a `tokenizer.json`
    template : source of the chat template; None: the tokenizer alone is tried
    special_tokens : `bos_token` and its like, as the template may name them
    vocab_size : tokens that the model has
    tool_use : source of the chat template where there are tools, if it is another

    Raises
    ------
    ConversationError
        If that cannot be done, or a prompt is without what the user said; the message gives the
        reason.
    """
    request = {
        "tokenizer": str(tokenizer.absolute()),
        "template": template,
        "tool_use": tool_use,
        "special_tokens": dict(special_tokens),
        "vocab_size": vocab_size,
    }
    try:
        with process_noted("confined: conversation"):
            done = subprocess.run(
                command("conversation"),
                cwd=start_folder(),
                env=environment(),
                input=json.dumps(request).encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # panics; the process reports them itself
                timeout=LOAD_SECONDS + CONVERSATION_SECONDS + _GRACE_SECONDS,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise _failed(f"it takes more than {LOAD_SECONDS} s") from error
    if took_too_long(done.returncode):
        raise _failed(f"it takes more than {LOAD_SECONDS} s to load, or {CONVERSATION_SECONDS} s")
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        why = f"it takes more than {MEMORY_BYTES >> 30} GiB of memory, or breaks `tokenizers`"
        raise _failed(why) from None
    if isinstance(answer, str):
        raise _failed(answer)
    return Trial(**answer)


def _failed(why: str) -> ConversationError:
    hint = "correct the chat template, or take that of the model that was trained"
    return ConversationError(
        f"tokenizer and chat template cannot hold a short conversation: {why}",
        hint=hint
        if why.startswith("the chat template")
        else "save the tokenizer that the model was trained with again, with save_pretrained; "
        "where it has tokens that the model has not, resize the model to it first",
    )


def main() -> None:
    """Do it: the request comes as JSON, the answer is a trial's fields, or what is wrong."""
    request = json.load(sys.stdin)
    limit_memory(MEMORY_BYTES)
    answer: str | JsonObject
    try:
        answer = _try(request)
    except Gemma4CompileError as error:
        answer = str(error)
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    json.dump(answer, sys.stdout)


def _try(request: JsonObject) -> JsonObject:
    with time_limit(LOAD_SECONDS):
        tokenizer = load_tokenizer(Path(request["tokenizer"]))
    with time_limit(CONVERSATION_SECONDS):
        prompts = dict(_prompts(request))
        token_ids = {}
        for name, text in [*((None, word) for word in _WORDS), *prompts.items()]:
            if text is None:
                continue
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            _check_ids(ids, text, request["vocab_size"])
            tokenizer.decode(ids, skip_special_tokens=True)
            if name in NEEDED:
                token_ids[name] = ids
                _check_question(DIALOGUES[name], text)
        _decode(tokenizer, request["vocab_size"])
    return {"prompts": prompts, "token_ids": token_ids}


def _prompts(request: JsonObject) -> Iterator[tuple[str, str | None]]:
    """Render the dialogues, those that every template has to take first."""
    if request["template"] is None:
        return
    template = ChatTemplate(request["template"], request["special_tokens"], request["tool_use"])
    for name, dialogue in DIALOGUES.items():
        try:
            text = _render(template, dialogue)
        except UsageError:
            if name in NEEDED:
                raise
            text = None
        yield name, text


def _render(template: ChatTemplate, dialogue: Dialogue) -> str:
    return template.render(dialogue.said, thinking=dialogue.thinking, tools=dialogue.tools)


def _check_question(dialogue: Dialogue, prompt: str) -> None:
    lost = dialogue.left_out(prompt, "user")
    if lost is not None:
        raise ConversationError(f"the chat template leaves out what the user says ({lost!r})")


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

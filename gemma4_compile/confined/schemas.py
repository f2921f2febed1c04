"""Follows JSON schemas with the `llguidance` library, each schema in a process of its own.

The first process reads the tokenizer, which takes seconds for a large one, and then forks for every
schema that it is sent a connection for. A schema that makes the library crash, loop or take memory
ends its own process alone. Windows knows no forks: there every schema has a first process, which
follows it over the connection that brought the tokenizer.

Over a connection: `SCHEMA` and the schema as JSON, or `LARK` and a grammar, answered by `FINE` or
`REFUSED` and a message; then, for every token, the id of the token before (`NO_TOKEN` at first),
answered by `FINE` and the bits of the tokens that are allowed, lowest first, or by `REFUSED` and a
message.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import signal
import socket
import struct
import sys
from typing import Any

from gemma4_compile.confined import frames
from gemma4_compile.system import sockets
from gemma4_compile.system.limits import limit_cpu, limit_memory, time_limit

FINE, REFUSED = b"+", b"-"
SCHEMA, LARK = b"{", b"l"
NO_TOKEN = -1
TOKEN = struct.Struct("<i")

COMPILE_SECONDS = 5
STEP_SECONDS = 5
REPLY_CPU_SECONDS = 120  # over all tokens of a reply
MEMORY_BYTES = 512 << 20
_LOAD_SECONDS = 60


FORKS = sys.platform != "win32"
"""Whether one process serves all schemas."""
FORKING, SINGLE = "forking", "single"


def main(control: socket.socket, mode: str) -> None:
    """Serve connections that arrive over a socket until it is closed; with SINGLE, itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends a reply, and who started this
    with control:
        try:
            with time_limit(_LOAD_SECONDS):
                library, words = _load(control)
        except BaseException as error:  # a panic of the library is no Exception
            frames.send(control, REFUSED + _message(error))
            return
        frames.send(control, FINE)
        if mode == SINGLE:
            _serve(library, words, control)
        else:
            _fork_for_each(library, words, control)


def _fork_for_each(library: object, words: object, control: socket.socket) -> None:
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a child ended
    while (connection := _next_connection(control)) is not None:
        with connection:
            if os.fork() == 0:
                control.close()
                _serve(library, words, connection)


def _load(control: socket.socket) -> tuple[Any, Any]:
    import llguidance

    sizes = json.loads(frames.receive(control))
    tokenizer = _unspelled(frames.receive(control), set(sizes["control"]))
    words = llguidance.LLTokenizer(tokenizer, n_vocab=sizes["vocab_size"], eos_token=sizes["stop"])
    return llguidance.LLMatcher, words


def _unspelled(tokenizer: bytes, control_ids: set[int]) -> str:
    """The tokenizer under names of its control tokens that no schema can spell.

    The library encodes the text of constants with it: `<turn|>` in one would be that token.
    """
    content = json.loads(tokenizer)
    secret = secrets.token_hex(8)
    names = {}
    for token in content["added_tokens"]:
        if token["id"] in control_ids:
            names[token["content"]] = f"\ue000{secret}{token['id']}"
            token.update(content=names[token["content"]], special=True)
    model = content["model"]
    model["vocab"] = {names.get(word, word): number for word, number in model["vocab"].items()}
    if "unk_token" in model:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    content["post_processor"] = None  # names tokens too, and texts of schemas have no ends
    return json.dumps(content)


def _next_connection(control: socket.socket) -> socket.socket | None:
    descriptors = sockets.receive_descriptor(control)
    return socket.socket(fileno=descriptors[0]) if descriptors else None


def _serve(library: Any, words: Any, connection: socket.socket) -> None:
    """Follow one schema, in a process of its own, which ends here."""
    try:
        limit_memory(MEMORY_BYTES)
        limit_cpu(REPLY_CPU_SECONDS)
        _follow(library, words, connection)
    except EOFError:
        pass  # nobody asks any more
    except BaseException as error:
        frames.send(connection, REFUSED + _message(error))
    finally:
        os._exit(0)


def _follow(library: Any, words: Any, connection: socket.socket) -> None:
    message = frames.receive(connection)
    kind, text = message[:1], message[1:].decode()
    with time_limit(COMPILE_SECONDS):
        if kind == SCHEMA:
            options = {"whitespace_flexible": False}
            grammar = library.grammar_from_json_schema(text, overrides=options)
        else:
            grammar = library.grammar_from_lark(text)
        failed, messages = library.validate_grammar_with_warnings(grammar, words)
        if failed:
            raise ValueError("; ".join(messages))
        matcher = library(words, grammar)
        mask = matcher.compute_bitmask()  # what is wrong with the first one is the schema's fault
        _raise_error(matcher)
    frames.send(connection, FINE)
    frames.receive(connection)
    frames.send(connection, FINE + mask)
    while True:
        (token_id,) = TOKEN.unpack(frames.receive(connection))
        with time_limit(STEP_SECONDS):
            matcher.consume_token(token_id)
            mask = matcher.compute_bitmask()
            _raise_error(matcher)
        frames.send(connection, FINE + mask)


def _raise_error(matcher: Any) -> None:
    if matcher.is_error():
        raise ValueError(matcher.get_error().partition("\n<state>")[0])


def _message(error: BaseException) -> bytes:
    return (str(error) or type(error).__name__).encode("utf-8", "replace")


if __name__ == "__main__":
    main(sockets.inherited(sys.argv[1]), sys.argv[2])

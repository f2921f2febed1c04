"""Schemas in processes of their own; the far end is `gemma4_compile/confined/schemas.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gemma4_compile.confined import frames, schemas
from gemma4_compile.runtime.grammar.schema_process import (
    SchemaRefused,
    SchemaServer,
    SchemaServerError,
)
from tests.scripted_engine import END_OF_TURN, VOCABULARY, encode, tiny_tokenizer

TOKENIZER = tiny_tokenizer()


@pytest.fixture(scope="module")
def server() -> SchemaServer:
    return SchemaServer(TOKENIZER.to_str, VOCABULARY, [1, END_OF_TURN])


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "integer", "enum": [-1e308]}, "breaks the library"),  # SIGSEGV
        ({"type": "integer", "multipleOf": 2147483648}, "more than"),  # 5 s, or the memory
        pytest.param(
            {"type": "integer", "multipleOf": 99_999_989}, "more than", marks=pytest.mark.slow
        ),
    ],
)
def test_what_breaks_the_library_breaks_its_own_process_alone(
    server: SchemaServer, schema: dict[str, Any], message: str
) -> None:
    other = server.follow(b'{"type": "boolean"}')
    first = other.allowed(None)
    with pytest.raises(SchemaRefused, match=message):
        server.follow(json.dumps(schema).encode())
    assert other.allowed(encode("t")[0]) != first
    server.follow(b'{"type": "boolean"}')


def test_a_server_that_was_killed_is_started_anew(server: SchemaServer) -> None:
    server.follow(b'{"type": "boolean"}')
    assert server._process is not None
    server._process.kill()
    server._process.wait()
    assert server.follow(b'{"type": "boolean"}').allowed(None)


def test_an_exchange_that_ctrl_c_cut_is_not_answered_by_the_wrong_mask(
    server: SchemaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = server.follow(b'{"type": "boolean"}')

    def interrupt(_: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(frames, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            process.allowed(None)
    with pytest.raises(SchemaRefused, match="interrupted"):
        process.allowed(None)


def test_a_tokenizer_that_the_library_cannot_read_is_named() -> None:
    with pytest.raises(SchemaServerError, match="cannot read this tokenizer"):
        SchemaServer(lambda: "{}", VOCABULARY, [1]).follow(b"{}")


def test_without_forks_every_schema_has_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "FORKS", False)
    alone = SchemaServer(TOKENIZER.to_str, VOCABULARY, [1, END_OF_TURN])
    first, second = (alone.follow(b'{"const": %d}' % number) for number in (1, 2))
    allowed = [each.allowed(None) for each in (first, second)]
    assert allowed[0] != allowed[1]
    with pytest.raises(SchemaRefused):
        alone.follow(b'{"type": "nothing"}')
    assert first.allowed(encode("1")[0])
    alone.close()

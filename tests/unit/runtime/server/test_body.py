from __future__ import annotations

import pytest

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.body import parse_json


def test_text_is_taken_as_it_is() -> None:
    assert parse_json('{"a": "ü\\ud83d\\ude42 \\\\ud800"}'.encode()) == {"a": "ü🙂 \\ud800"}
    assert parse_json(b"\xef\xbb\xbf[1]") == [1]


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": "\\ud800"}',
        b'{"\\udc00": 1}',
        b'[["x\\uDFFF"]]',
        b'{"a": "\\ude42\\ud83d"}',
        b'{"a": "\xed\xa0\x80"}',
        '{"a": 1}'.encode("utf-16"),
        b"\xff",
        b"NaN",
        b"[1e400, -Infinity]",
        b"",
        b"[" * 100_000,
        b"1" * 5_000,
    ],
)
def test_what_is_no_json_or_no_unicode_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(ApiError, match="the body is not JSON") as raised:
        parse_json(body)
    assert raised.value.status == 400
    assert len(raised.value.message) < 300

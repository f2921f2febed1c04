from __future__ import annotations

import pytest

from gemma4_compile import serve_options
from gemma4_compile.errors import UsageError


@pytest.mark.parametrize("key", ["", " key", "a\nb"])
def test_a_key_that_no_client_can_bring_is_refused_at_once(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(serve_options.API_KEY_VARIABLE, key)
    arguments = serve_options.make_parser().parse_args(["DIR"])
    with pytest.raises(UsageError, match=serve_options.API_KEY_VARIABLE):
        serve_options.check(arguments)


@pytest.mark.parametrize("host", ["", " "])
def test_an_empty_host_is_not_every_network(host: str) -> None:
    arguments = serve_options.make_parser().parse_args(["DIR", "--host", host])
    with pytest.raises(UsageError, match="--host is empty"):
        serve_options.check(arguments)


def test_what_is_right_is_left_to_the_command() -> None:
    assert serve_options.main(["DIR", "--port", "0", "--allow-origin", "*"]) == 0

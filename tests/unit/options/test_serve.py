from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.options import serve as serve_options
from gemma4_compile.options.serve import COMMAND

CHECKOUT = Path(__file__).parents[3]


@pytest.mark.parametrize("key", ["", " key", "a\nb"])
def test_a_key_that_no_client_can_bring_is_refused_at_once(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(serve_options.API_KEY_VARIABLE, key)
    with pytest.raises(UsageError, match=serve_options.API_KEY_VARIABLE):
        COMMAND.parse(["DIR"])


@pytest.mark.parametrize("host", ["", " "])
def test_an_empty_host_is_not_every_network(host: str) -> None:
    with pytest.raises(UsageError, match="--host is empty"):
        COMMAND.parse(["DIR", "--host", host])


def test_the_sources_of_a_page_are_not_served(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_bytes((CHECKOUT / "examples/web/index.html").read_bytes())
    with pytest.raises(UsageError, match="loads TypeScript") as unbuilt:
        COMMAND.parse(["DIR", "--page", str(tmp_path)])
    assert "npm run build" in str(unbuilt.value.hint)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/index.html").write_text('<script type="module" src="./a.ts.js"></script>')
    with pytest.raises(UsageError, match="loads TypeScript") as built:
        COMMAND.parse(["DIR", "--page", str(tmp_path)])
    assert f"--page {tmp_path / 'dist'}" in str(built.value.hint)
    assert COMMAND.parse(["DIR", "--page", str(tmp_path / "dist")]).page == tmp_path / "dist"


def test_what_is_right_is_left_to_the_command() -> None:
    assert COMMAND.parse(["DIR", "--port", "0", "--allow-origin", "*"]).allow_origin == ("*",)


def test_hosts_of_media_are_names_without_a_path() -> None:
    hosts = serve_options.media_hosts("Example.org, a.b:8443,,127.0.0.1")
    assert hosts == ["example.org", "a.b:8443", "127.0.0.1"]
    assert serve_options.media_hosts("") == []
    for wrong in ("https://example.org", "example.org/a", "*", "a b", "a:b", "a:0", "a:65536"):
        with pytest.raises(UsageError, match="--allow-media-hosts: expected host names"):
            serve_options.media_hosts(wrong)
    assert COMMAND.parsed(["DIR", "--allow-media-hosts", "http://a"]) == 2


def test_hosts_that_are_allowed_are_names_as_browsers_send_them() -> None:
    given = ["Host.Docker.Internal", "chat.example.:8443", "*.a.b", "bücher.example", "my_pc", "*"]
    assert serve_options.allowed_hosts(["127.0.0.1", "::1", "[::1]"]) == []  # answered anyway
    assert serve_options.allowed_hosts(given) == [
        "host.docker.internal",
        "chat.example:8443",
        "*.a.b",
        "xn--bcher-kva.example",
        "my_pc",
        "*",
    ]
    for wrong in (
        "",
        "https://a.b",
        "a.b/c",
        "a b",
        "a:b",
        "a:0",
        "a:65536",
        "*.",
        "a.*",
        "é..b",
        "a" * 254,
    ):
        with pytest.raises(UsageError, match="--allow-host: expected a host name"):
            serve_options.allowed_hosts([wrong])
    assert COMMAND.parsed(["DIR", "--allow-host", "http://a"]) == 2


def test_origins_are_taken_as_browsers_send_them() -> None:
    given = ["https://Example.org:443", "http://a.b:80/", "http://a.b:8080", "*", "http://[::1]:80"]
    assert serve_options.allowed_origins(given) == [
        "https://example.org",
        "http://a.b",
        "http://a.b:8080",
        "*",
        "http://[::1]",
    ]
    inside = ["app://obsidian.md", "chrome-extension://abcdef", "safari-web-extension://0A-FF"]
    assert serve_options.allowed_origins(inside) == inside
    assert serve_options.allowed_origins(["https://bücher.example"]) == [
        "https://xn--bcher-kva.example"
    ]
    for wrong in ("", "null", "a.b", "https://a.b/c", "https://*.a.b", "https://u@a.b", "https://"):
        with pytest.raises(UsageError, match="--allow-origin: expected an origin"):
            serve_options.allowed_origins([wrong])

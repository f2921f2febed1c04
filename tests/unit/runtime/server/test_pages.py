from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from starlette import responses

from gemma4_compile.package import files
from gemma4_compile.runtime.server import pages
from gemma4_compile.runtime.server.pages import HEADERS, PACKAGE_HEADERS, folder_routes
from tests.live_server import serving


def test_page_and_package_are_served_and_nothing_next_to_them(tmp_path: Path) -> None:
    page, package = tmp_path / "page", tmp_path / "package"
    for folder, name in ((page, "index.html"), (package, "model.wasm")):
        folder.mkdir()
        (folder / name).write_text(name)
    (tmp_path / "secret.txt").write_text("secret")
    files.finish(package, "model.wasm", {"target": "webgpu"})
    with serving(folder_routes(page, package)) as live:
        assert live.request("GET", "/?package=/package/")[2] == b"index.html"
        assert live.request("GET", "/package/model.wasm")[2] == b"model.wasm"
        for path in ("/secret.txt", "/../secret.txt", "/package/%2e%2e/secret.txt", "/package/"):
            assert live.request("GET", path)[0] == 404, path


def test_without_a_page_the_root_describes_the_server() -> None:
    with serving(folder_routes(None, None)) as live:
        status, headers, body = live.request("GET", "/")
        assert (status, headers["content-type"]) == (200, "text/plain; charset=utf-8")
        assert b"/v1/models" in body
        assert b"--page" in body
        assert live.request("GET", "/other")[0] == 404


def test_with_a_package_alone_the_root_is_nothing(tmp_path: Path) -> None:
    files.finish(tmp_path, None, {"target": "webgpu"})
    with serving(folder_routes(None, tmp_path)) as live:
        assert live.request("GET", "/")[0] == 404


@pytest.fixture
def site(tmp_path: Path) -> tuple[Path, Path]:
    page, package = tmp_path / "page", tmp_path / "package"
    (page / "assets").mkdir(parents=True)
    package.mkdir()
    (page / "index.html").write_text("<title>page</title>" * 100)
    (page / "assets" / "index-1a2b.js").write_text("let x = 1;" * 500)
    (package / "params_shard_0.bin").write_bytes(bytes(range(256)) * 16)
    (package / "model.wasm").write_bytes(b"\0asm" * 500)
    (package / "tokenizer.json").write_text("{}")
    (package / "evil.html").write_text("<script>parent.document</script>")
    (package / "evil.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    files.finish(package, "model.wasm", {"target": "webgpu"})
    (package / "unlisted.json").write_text("{}")
    (package / "sub").mkdir()
    (package / "sub" / "index.html").write_text("sub")
    return page, package


def test_every_file_has_the_headers_of_the_page(
    site: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some machines' tables have other types for these.
    monkeypatch.setattr(responses, "guess_type", lambda *_, **__: ("text/plain", None))
    (site[0] / "sw.js").write_text("addEventListener('fetch', () => undefined)")
    with serving(folder_routes(*site)) as live:
        for path, kind in (
            ("/?package=/package/", "text/html; charset=utf-8"),
            ("/assets/index-1a2b.js", "text/javascript; charset=utf-8"),
            ("/sw.js", "text/javascript; charset=utf-8"),
            ("/package/model.wasm", "application/wasm"),
            ("/package/params_shard_0.bin", "application/octet-stream"),
        ):
            status, headers, _ = live.request("GET", path)
            assert (status, headers["content-type"]) == (200, kind)
            wanted = PACKAGE_HEADERS if path.startswith("/package/") else HEADERS
            assert {name: headers[name.lower()] for name in wanted} == wanted
            kept = "immutable" in headers["cache-control"]
            assert kept == path.startswith("/assets/")
    assert "'unsafe-eval'" not in HEADERS["Content-Security-Policy"]


@pytest.mark.parametrize("under", ["/package/", "/package/resolve/main/"])
def test_a_package_is_data_whatever_is_in_it(site: tuple[Path, Path], under: str) -> None:
    (site[1] / "evil.svg").unlink()
    (site[1] / "evil.svg").symlink_to(site[0] / "index.html")
    with serving(folder_routes(*site)) as live:
        for name, kind in (
            ("provenance.json", "application/json"),
            ("tokenizer.json", "application/json"),
            ("model.wasm", "application/wasm"),
            ("evil.html", "application/octet-stream"),
            ("params_shard_0.bin", "application/octet-stream"),
        ):
            status, headers, body = live.request("GET", under + name)
            assert (status, headers["content-type"]) == (200, kind), name
            assert body == (site[1] / name).read_bytes()
            assert "sandbox" in headers["content-security-policy"].split("; ")
            assert headers["x-content-type-options"] == "nosniff"
        for name in (
            "unlisted.json",
            "",
            "sub",
            "sub/index.html",
            "../page/index.html",
            "evil.svg",
        ):
            assert live.request("GET", under + name)[0] == 404, name


def test_a_download_goes_on_where_it_stopped(site: tuple[Path, Path]) -> None:
    with serving(folder_routes(*site)) as live:
        path = "/package/params_shard_0.bin"
        status, headers, body = live.request(
            "GET", path, Range="bytes=4000-", Accept_Encoding="gzip"
        )
    assert (status, headers["content-range"]) == (206, "bytes 4000-4095/4096")
    assert body == (site[1] / "params_shard_0.bin").read_bytes()[4000:]


@pytest.mark.parametrize(
    ("asked", "status", "content_range"),
    [
        ("bytes=-96", 206, "bytes 4000-4095/4096"),
        ("Bytes = 4000-9999", 206, "bytes 4000-4095/4096"),
        ("bytes=, 4095-4095 ,", 206, "bytes 4095-4095/4096"),
        ("bytes=4096-", 416, "bytes */4096"),
        ("bytes=-0", 416, "bytes */4096"),
        *((asked, 200, None) for asked in ("bytes=5-2", "bytes=0-1,5-2", "bytes=", "bytes", "0-5")),
        *((asked, 200, None) for asked in ("items=0-5", "bytes=a-b", "bytes=1-2-3", "bytes=--1")),
        ("bytes=" + "9" * 5000 + "-", 200, None),
    ],
)
def test_a_range_that_means_nothing_is_ignored(
    asked: str, status: int, content_range: str | None, site: tuple[Path, Path]
) -> None:
    with serving(folder_routes(*site)) as live:
        found, headers, body = live.request("GET", "/package/params_shard_0.bin", Range=asked)
    assert (found, headers.get("content-range")) == (status, content_range)
    if status == 200:
        assert body == (site[1] / "params_shard_0.bin").read_bytes()


def test_only_what_gets_smaller_is_compressed(site: tuple[Path, Path]) -> None:
    with serving(folder_routes(*site)) as live:
        for path, compressed in (
            ("/package/model.wasm", True),
            ("/package/params_shard_0.bin", False),
        ):
            _, headers, body = live.request("GET", path, Accept_Encoding="gzip")
            assert (headers.get("content-encoding") == "gzip") == compressed
            found = gzip.decompress(body) if compressed else body
            assert found == (site[1] / Path(path).name).read_bytes()
            assert "content-encoding" not in live.request("GET", path)[1]


def test_the_page_opens_the_package_next_to_it(site: tuple[Path, Path]) -> None:
    page, package = site
    with serving(folder_routes(page, package)) as live:
        status, headers, _ = live.request("GET", "/")
        assert (status, headers["location"]) == (307, "?package=/package/")
    with serving(folder_routes(page, None)) as live:
        assert live.request("GET", "/")[0] == 200


def test_the_installed_page_goes_before_the_checkouts(
    monkeypatch: pytest.MonkeyPatch, site: tuple[Path, Path], tmp_path: Path
) -> None:
    monkeypatch.setattr(pages, "_INSTALLED", tmp_path / "nowhere")
    monkeypatch.setattr(pages, "_CHECKOUT", site[0])
    assert pages.find_page() == site[0]
    monkeypatch.setattr(pages, "_INSTALLED", site[1])
    (site[1] / "index.html").touch()
    assert pages.find_page() == site[1]
    monkeypatch.setattr(pages, "_INSTALLED", tmp_path / "nowhere")
    monkeypatch.setattr(pages, "_CHECKOUT", tmp_path / "nowhere")
    assert pages.find_page() is None


def test_the_module_is_served_next_to_a_package(
    monkeypatch: pytest.MonkeyPatch, site: tuple[Path, Path], tmp_path: Path
) -> None:
    installed, built = tmp_path / "installed", tmp_path / "built"
    for folder in (installed, built):
        folder.mkdir()
        (folder / "fast.js").write_text(f"// {folder.name}")
        (folder / "fast.d.ts").write_text("export {};")
    monkeypatch.setattr(pages, "_INSTALLED_MODULE", installed)
    monkeypatch.setattr(pages, "_BUILT_MODULE", built)
    with serving(folder_routes(*site)) as live:
        status, headers, body = live.request("GET", "/gemma4-web/fast.js")
        assert (status, body) == (200, b"// installed")
        assert headers["content-type"] == "text/javascript; charset=utf-8"
        assert headers["cache-control"] == "no-cache"
        assert live.request("GET", "/gemma4-web/fast.d.ts")[0] == 200
        for path in ("/gemma4-web/", "/gemma4-web/other.js", "/gemma4-web/%2e%2e/built/fast.js"):
            assert live.request("GET", path)[0] == 404, path
    (installed / "fast.js").unlink()
    with serving(folder_routes(None, site[1])) as live:
        assert live.request("GET", "/gemma4-web/fast.js")[2] == b"// built"
    (built / "fast.js").unlink()
    with serving(folder_routes(*site)) as live:
        assert live.request("GET", "/gemma4-web/fast.js")[0] == 404


def test_the_policy_is_the_same_wherever_it_stands() -> None:
    root = Path(__file__).parents[4]
    policy = HEADERS["Content-Security-Policy"]
    # A policy in the page itself cannot forbid frames.
    of_the_page, frames = policy.rsplit("; ", 1)
    assert frames == "frame-ancestors 'none'"
    assert f'content="{of_the_page}"' in (root / "examples/web/index.html").read_text()
    assert f"Content-Security-Policy: {policy}\n" in (root / "docs/web.md").read_text()
    server = (root / "tests/web/page_server.mjs").read_text()
    told = server.partition('"content-security-policy":')[2].partition('"cross-origin')[0]
    assert "".join(re.findall(r'"([^"]*)"', told)) == policy

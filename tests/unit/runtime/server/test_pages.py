from __future__ import annotations

from pathlib import Path

from gemma4_compile.runtime.server.pages import folder_routes
from tests.live_server import serving


def test_page_and_package_are_served_and_nothing_beside_them(tmp_path: Path) -> None:
    page, package = tmp_path / "page", tmp_path / "package"
    for folder, name in ((page, "index.html"), (package, "model.wasm")):
        folder.mkdir()
        (folder / name).write_text(name)
    (tmp_path / "secret.txt").write_text("secret")
    with serving(folder_routes(page, package)) as live:
        assert live.request("GET", "/")[2] == b"index.html"
        assert live.request("GET", "/package/model.wasm")[2] == b"model.wasm"
        for path in ("/secret.txt", "/../secret.txt", "/package/%2e%2e/secret.txt", "/package/"):
            assert live.request("GET", path)[0] == 404, path

"""`gemma4-serve --model NAME=DIR ...` as a user runs it, on `tiny`."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from starlette.routing import BaseRoute

from gemma4_compile.errors import ArtifactError
from gemma4_compile.options.serve import COMMAND
from gemma4_compile.package import files
from gemma4_compile.runtime import serve_several, served_package
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.package.package import read_provenance
from gemma4_compile.runtime.prefixes.prefix_folder import forget
from gemma4_compile.runtime.serve import main
from gemma4_compile.runtime.served_package import load_package
from tests.live_server import serving as live_serving
from tests.serving import serving


@dataclass
class Engines:
    """Engines that were made, and whether they are still there."""

    fails: bool = False
    made: list[weakref.ref[Engine]] = field(default_factory=list)

    def record(self, *arguments: Any, **options: Any) -> Engine:
        engine = Engine(*arguments, **options)
        self.made.append(weakref.ref(engine))
        if self.fails:
            raise ArtifactError("it is damaged", hint="make it again")
        return engine

    @property
    def alive(self) -> list[bool]:
        return [engine() is not None for engine in self.made]


def answer(client: openai.OpenAI, model: str) -> str:
    found = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "What is 8 plus 19?"}], temperature=0
    )
    assert found.model == model
    content = found.choices[0].message.content
    assert content is not None
    return content


def loaded(client: openai.OpenAI) -> list[str]:
    found = client.models.list().data
    return [one.id for one in found if one.model_dump()["status"]["value"] == "loaded"]


def test_packages_take_turns_in_the_memory_that_there_is(
    tiny_package: Path, tmp_path: Path
) -> None:
    """One fits beside nobody: its plan says some 16 MB, and a slot more would be too many."""
    models = [word for name in "ab" for word in ("--model", f"{name}={tiny_package}")]
    kept = tmp_path / "kept"
    with serving(*models, "--memory", "20MB", "--prefix-cache", kept) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=120)
        assert loaded(client) == []
        for name in ("a", "b", "a"):
            assert answer(client, name) == "8 plus 19 is 27."
            assert loaded(client) == [name]
        with pytest.raises(openai.NotFoundError, match="this server has `a`, `b`"):
            answer(client, "c")
    assert len([one for one in kept.iterdir() if one.is_dir()]) == 2, "a folder for each"
    forget(kept)
    assert not kept.exists()


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    """Those that are made from now on."""
    made = Engines()
    monkeypatch.setattr(served_package, "Engine", made.record)
    return made


def test_an_unloaded_package_leaves_nothing_in_memory(
    tiny_package: Path, tmp_path: Path, engines: Engines
) -> None:
    options = COMMAND.parse(["--model", f"a={tiny_package}", "--prefix-cache", str(tmp_path / "p")])
    served = load_package(options, tiny_package, read_provenance(tiny_package), "a")
    assert served.is_alive
    served.close()
    del served
    gc.collect()
    assert engines.alive == [False]


def test_neither_answers_nor_failures_keep_an_unloaded_package_in_memory(
    tiny_package: Path, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listen(
        routes: Sequence[BaseRoute],
        taken: object,
        options: object,
        **_: object,
    ) -> None:
        with live_serving(routes) as live:
            client = live.client()
            engines.fails = True
            with pytest.raises(openai.InternalServerError, match="it is damaged; make it again"):
                answer(client, "a")
            engines.fails = False
            for name in "aba":
                assert answer(client, name) == "8 plus 19 is 27."
            assert engines.alive == [False, False, False, True]

    monkeypatch.setattr(serve_several, "listen", listen)
    models = [word for name in "ab" for word in ("--model", f"{name}={tiny_package}")]
    options = COMMAND.parse([*models, "--memory", "20MB", "--port", "0"])
    serve_several.serve_several(options, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--context-length", "257"], "`a` was compiled for 256 tokens, found 257"),
        (["--device", "cuda"], "cuda"),
    ],
)
def test_what_could_never_run_is_told_before_anything_is_served(
    options: list[str], message: str, tiny_package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", f"a={tiny_package}", "--port", "0", *options]) in (1, 2)
    told = capsys.readouterr()
    assert message in told.err
    assert told.out == ""


def test_the_page_lists_the_packages_for_browsers(
    tiny_package: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Beside the API of those that run here; what no page can load is not offered."""
    page, package = tmp_path / "page", tmp_path / "web"
    for folder, name in ((page, "index.html"), (package, "model.wasm")):
        folder.mkdir()
        (folder / name).write_text(name)
    files.finish(package, "model.wasm", {"target": "webgpu"})
    heard: list[str] = []

    def listen(
        routes: Sequence[BaseRoute],
        taken: object,
        options: object,
        *,
        opens: bool,
        **rest_: object,
    ) -> None:
        assert not opens
        with live_serving(routes) as live:
            offered = json.loads(live.request("GET", "/models.json")[2])["models"]
            heard.extend(one["name"] for one in offered)
            assert [one["address"] for one in offered] == ["/package/b-c/", "/package/b-c-2/"]
            assert live.request("GET", "/")[2] == b"index.html"
            for path in ("/package/b-c/model.wasm", "/package/b-c-2/resolve/main/model.wasm"):
                assert live.request("GET", path)[2] == b"model.wasm"
            assert live.request("GET", "/package/a/provenance.json")[0] == 404
            status, _, body = live.request("GET", "/v1/models")
            heard.append(f"{status}")
            if status == 200:
                assert [one["id"] for one in json.loads(body)["data"]] == ["a"]

    monkeypatch.setattr(serve_several, "listen", listen)
    of_pages = ["--model", f"b c={package}", "--model", f"b-c={package}"]
    rest = ["--page", str(page), "--port", "0", "--no-open"]
    assert main(["--model", f"a={tiny_package}", *of_pages, *rest]) == 0
    assert "`b c` answers in the page alone" in capsys.readouterr().err
    assert main([*of_pages, *rest]) == 0
    assert heard == ["b c", "b-c", "200", "b c", "b-c", "404"]


def test_without_a_page_a_package_for_browsers_alone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.wasm").touch()
    files.finish(tmp_path, "model.wasm", {"target": "webgpu"})
    monkeypatch.setattr(serve_several, "find_page", lambda: None)
    assert main(["--model", f"a={tmp_path}", "--port", "0"]) == 1
    told = capsys.readouterr().err
    assert "webgpu" in told
    assert "hint: " in told

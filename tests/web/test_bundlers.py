"""docs/web.md's recipes for bundlers and its headers: from `npm pack`'s file to an answer."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.child import run_within
from tests.web.compiled import TINY, Compiler
from tests.web.cpu_runtime import ENOUGH, QUANT, Questions, Runtime, system, user
from tests.web.dawn import TIMEOUT_S, run_driver
from tests.web.npm_pack import packed_module

pytestmark = pytest.mark.browser

PROJECT = Path(__file__).parent / "bundlers"
DOCS = (PROJECT.parents[2] / "docs" / "web.md").read_text("utf-8")
POLICY = "Content-Security-Policy: "
NEEDED = ("'wasm-unsafe-eval'",)
BUILDS = {  # command, and the folder that it writes
    "vite": ("vite build", "dist"),
    "webpack": ("webpack", "dist"),
    "next": ("next build", "out"),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of all bundlers in a project that has installed gemma4-web."""
    packed = packed_module(tmp_path_factory)
    if not (PROJECT / "node_modules" / "next").is_dir():
        pytest.skip("npm packages are not installed: run `npm ci` in tests/web/bundlers")
    root = tmp_path_factory.mktemp("bundlers") / "project"
    # A copy, for bundlers follow links to where gemma4-web is not installed.
    shutil.copytree(PROJECT, root, copy_function=_link_or_copy, symlinks=True)
    shutil.copytree(packed, root / "node_modules" / "gemma4-web")
    return root


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
    return target


@pytest.fixture(scope="module")
def builds(project: Path) -> dict[str, Path]:
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(project / "node_modules" / ".bin"), os.environ["PATH"]]),
        "NEXT_TELEMETRY_DISABLED": "1",
    }
    for name, (command, _) in BUILDS.items():
        done = run_within(TIMEOUT_S, command.split(), cwd=project / name, env=environment)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    shutil.copy(project / "webpack" / "index.html", project / "webpack" / "dist")
    return {name: project / name / output for name, (_, output) in BUILDS.items()}


# The least of docs/web.md, and what each of its parts is for.
LEAST = DOCS.split("### The least that works")[1].split("```")[1].strip().removeprefix(POLICY)
ISOLATED = {
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
}
ELSEWHERE = f"{LEAST} THIRD".replace("frame-ancestors 'none'; ", "")


def headers(policy: str, **others: str) -> dict[str, str]:
    named = {name.replace("_", "-"): value for name, value in others.items()}
    return {"content-security-policy": policy, **ISOLATED, **named}


def page_headers() -> dict[str, dict[str, Any]]:
    """What each build is sent with; Next's own scripts are in its HTML."""
    answering: dict[str, dict[str, Any]] = {
        "vite": {"headers": headers(LEAST)},
        "webpack": {"headers": headers(LEAST)},
        "next": {"headers": dict(ISOLATED)},
        "embedded": {
            "headers": headers(ELSEWHERE, cross_origin_resource_policy="cross-origin"),
            "embedded": dict(ISOLATED),
            "policy": "cross-origin-isolated",
            "apart": True,
        },
    }
    refused = {part: {"headers": headers(LEAST.replace(f" {part}", ""))} for part in NEEDED} | {
        "another host": {"headers": headers(LEAST), "apart": True}
    }
    return answering | refused


@pytest.mark.slow
def test_every_page_answers_with_the_module_in_its_worker(
    builds: dict[str, Path],
    compiled: Compiler,
    browser: str,
    runtime: Runtime,
    questions: Questions,
    folder: Path,
) -> None:
    question = questions.stopping[0]
    tokens, _ = runtime.greedy(runtime.prompt([system(""), user(question)]), ENOUGH)
    job = {
        "pages": {
            name: {"folder": str(builds.get(name, builds["vite"])), **sent}
            for name, sent in page_headers().items()
        },
        "package": str(compiled(TINY, "webgpu", QUANT).resolve()),
        "chromium": browser,
        "output": str(folder),
        "question": question,
    }
    told = run_driver("bundler_driver.mjs", job, folder, os.environ)
    for name in (*BUILDS, "embedded"):
        answer = told[name]
        assert answer.get("text") == runtime.decode(tokens), (name, answer)
        assert answer["stats"]["aheadSteps"] > 0, f"{name}: the module drives the worker's client"
        assert answer["stats"]["library"] == "default", name
        assert answer["onPage"], f"{name}: an import without names is left out"
    for part in (*NEEDED, "another host"):
        assert "error" in told[part], f"it works without {part}: name less in docs/web.md"


ENDED = """
import { ask } from "./main.js";
globalThis.location = { search: "?at=package/&question=Hi", href: "https://example.org/" };
const done = [];
const worker = Object.fromEntries(
  ["addEventListener", "postMessage", "terminate"].map((name) => [name, () => done.push(name)]),
);
const end = ask(worker, {});
done.length = 0;
end();
console.log(done.join());
"""


@pytest.mark.slow
def test_a_page_that_is_left_ends_its_worker(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """React ends and begins an effect again while one develops."""
    shutil.copy(PROJECT / "main.js", tmp_path)
    shutil.copy(PROJECT / "package.json", tmp_path)
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "gemma4-web").symlink_to(packed_module(tmp_path_factory))
    done = run_within(TIMEOUT_S, ["node", "--input-type=module", "-e", ENDED], cwd=tmp_path)
    assert done.stdout.split() == ["terminate"], done.stderr
    assert "useEffect(() => ask(" in (PROJECT / "next" / "app" / "page.js").read_text("utf-8")


def test_the_recipes_are_those_that_were_built() -> None:
    shown = DOCS.split("### Bundlers")[1].split("\n### ")[0]
    for file in ("next/app/page.js", "vite/main.js", "webpack/main.js"):
        source = (PROJECT / file).read_text("utf-8")
        assert any(line in source for line in shown.splitlines() if "new Worker(" in line), file
    for line in (PROJECT / "worker.js").read_text("utf-8").splitlines():
        if line.startswith("import "):
            assert line in shown

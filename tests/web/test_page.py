"""The example page, used as a person would, in headless Chromium."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.web.compiled import TINY, Compiler
from tests.web.cpu_runtime import ENOUGH, Questions, Runtime, assistant, system, user
from tests.web.dawn import run_driver
from tests.web.webllm import find_browser

pytestmark = pytest.mark.browser

PAGE = Path(__file__).parents[2] / "examples" / "web"
Visit = Mapping[str, Any]


@pytest.fixture(scope="module")
def page(browser: str) -> Path:
    """The built page."""
    if not (PAGE / "node_modules" / "vite").is_dir():
        pytest.skip("npm packages are not installed: run `npm ci` in examples/web")
    build = ["npm", "run", "--silent", "build"]
    subprocess.run(build, cwd=PAGE, check=True, capture_output=True)
    return PAGE / "dist"


def change_file(package: Path, name: str, content: bytes, *, declared: bool) -> None:
    """Replace a file; `declared` also corrects what `provenance.json` says of it."""
    (package / name).write_bytes(content)
    if declared:
        path = package / "provenance.json"
        provenance = json.loads(path.read_text())
        provenance["files"][name] = {
            "nbytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        path.write_text(json.dumps(provenance))


@pytest.fixture(scope="module")
def packages(compiled: Compiler, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("served")
    names = {"greedy": "q4f32", "damaged": "q4f32", "f16": "q4f16"}
    folders = {name: root / name for name in names}
    for name, quant in names.items():
        shutil.copytree(compiled(TINY, "webgpu", quant), folders[name])
    config = json.loads((folders["greedy"] / "mlc-chat-config.json").read_text())
    content = json.dumps({**config, "temperature": 0.0}).encode()
    change_file(folders["greedy"], "mlc-chat-config.json", content, declared=True)
    shard = bytearray((folders["damaged"] / "params_shard_0.bin").read_bytes())
    shard[1000] ^= 1
    change_file(folders["damaged"], "params_shard_0.bin", bytes(shard), declared=False)
    return {**folders, "missing": root / "missing"}


def visit(
    page: Path, packages: Mapping[str, Path], visits: Sequence[Visit], folder: Path
) -> list[dict[str, Any]]:
    job = {
        "page": str(page),
        "packages": {name: str(path) for name, path in packages.items()},
        "chromium": find_browser(),
        "output": str(folder),
        "visits": list(visits),
    }
    told: list[dict[str, Any]] = run_driver("page_driver.mjs", job, folder, os.environ)["visits"]
    return told


RULE = "Cost: $& or $1."  # the client would read `$&` as a place for something else


@pytest.fixture(scope="module")
def conversations(
    page: Path,
    packages: dict[str, Path],
    questions: Questions,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[list[dict[str, Any]]]:
    """Three conversations in one visit: two turns, a system prompt, a reply that is stopped."""
    first, second = questions.stopping
    actions = [["ask", first], ["ask", second], ["new", ""]]
    actions += [["system", RULE], ["ask", first], ["new", ""]]
    actions += [["stop", "Tell me everything."], ["ask", "Hi"]]
    folder = tmp_path_factory.mktemp("page")
    (told,) = visit(page, packages, [{"package": "greedy", "actions": actions}], folder)
    assert told["error"] is None
    assert "tokens/s" in told["speed"]
    found: list[list[dict[str, Any]]] = told["conversations"]
    return found


def test_two_turns_equal_the_template(
    conversations: list[list[dict[str, Any]]], runtime: Runtime, questions: Questions
) -> None:
    first, second = questions.stopping
    replies = [item for item in conversations[0] if item["role"] == "assistant"]
    messages = [user(first)]
    for reply, question in zip(replies, [second, ""], strict=True):
        tokens, _ = runtime.greedy(runtime.prompt(messages), ENOUGH)
        assert reply["text"] == runtime.decode(tokens)
        assert reply["finish"] == "stop"
        messages += [assistant(reply["text"]), user(question)]


def test_system_prompt_arrives_as_it_was_written(
    conversations: list[list[dict[str, Any]]], runtime: Runtime, questions: Questions
) -> None:
    prompt = runtime.prompt([system(RULE), user(questions.stopping[0])])
    assert conversations[1][1]["text"] == runtime.decode(runtime.greedy(prompt, ENOUGH)[0])


def test_stop_button_ends_a_reply(conversations: list[list[dict[str, Any]]]) -> None:
    assert [item["role"] for item in conversations[2]] == ["user", "assistant"] * 2
    assert conversations[2][1]["finish"] in ("abort", "stop")  # the reply may be faster than we


def test_what_cannot_work_is_said_before_the_download(
    page: Path, packages: dict[str, Path], folder: Path
) -> None:
    visits = [
        {"package": "f16", "actions": []},  # SwiftShader has no 16-bit floats
        {"package": "greedy", "lack": "webgpu", "actions": []},
        {"package": "greedy", "lack": "adapter", "actions": []},
        {"package": "missing", "actions": []},
    ]
    told = visit(page, packages, visits, folder)
    expected = ["q4f32", "no WebGPU", "no graphics device", "404"]
    for each, words in zip(told, expected, strict=True):
        assert words in each["error"]
        assert not [path for path in each["requested"] if path.endswith((".bin", ".wasm"))]


def test_damaged_shard_is_refused_by_name(
    page: Path, packages: dict[str, Path], folder: Path
) -> None:
    (told,) = visit(page, packages, [{"package": "damaged", "actions": []}], folder)
    assert "params_shard_0.bin" in told["error"]

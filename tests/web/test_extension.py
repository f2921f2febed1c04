"""The extension (examples/extension) in Chromium: model and chat outlive worker and panels."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile import abi
from tests.child import run_within
from tests.web.compiled import TINY, Compiler
from tests.web.cpu_runtime import (
    ENOUGH,
    MARGIN,
    QUANT,
    Questions,
    Runtime,
    assistant,
    system,
    user,
)
from tests.web.dawn import TIMEOUT_S, run_driver

EXTENSION = Path(__file__).parents[2] / "examples" / "extension"
MANIFEST: dict[str, Any] = json.loads((EXTENSION / "manifest.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def package(compiled: Compiler) -> Path:
    return compiled(TINY, "webgpu", QUANT)


@pytest.fixture(scope="module")
def built(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (EXTENSION / "node_modules" / "esbuild").is_dir():
        pytest.skip("npm packages are not installed: run `npm ci` in examples/extension")
    output = tmp_path_factory.mktemp("extension") / "dist"
    command = ["npm", "run", "--silent", "build", "--", str(package), str(output)]
    done = run_within(TIMEOUT_S, command, cwd=EXTENSION)
    assert done.returncode == 0, done.stdout + done.stderr
    return output


@pytest.mark.slow
@pytest.mark.browser
def test_the_chat_outlives_the_service_worker_and_the_panel(
    built: Path, package: Path, browser: str, runtime: Runtime, questions: Questions, folder: Path
) -> None:
    other = folder / "other"
    other.mkdir()
    (other / abi.PROVENANCE_FILE).write_text("{}")
    first, second = questions.stopping
    job = {
        "extension": str(built),
        "package": str(package.resolve()),
        "other": str(other),
        "chromium": browser,
        "output": str(folder),
        "questions": [first, second],
    }
    told = run_driver("extension_driver.mjs", job, folder, os.environ)
    messages = [system("")]  # the client opens every chat with a system turn
    for question, answer in zip((first, second), told["answers"], strict=True):
        messages.append(user(question))
        tokens, margin = runtime.greedy(runtime.prompt(messages), ENOUGH)
        assert answer == runtime.decode(tokens) if margin > MARGIN else answer
        messages.append(assistant(answer))
    assert told["opens"], "the button opens the panel"
    assert told["workers"] == 0, "nobody needs the worker for an answer"
    assert len(set(told["documents"])) == 1, "one document from the first answer to the last panel"
    assert told["shown"] == [turn["content"] for turn in messages[1:]]
    assert "another package" in told["refused"]
    assert told["requested"].count("mlc-chat-config.json") == 1, "not what another version has kept"
    assert told["requested"].count("params_shard_0.bin") == 1, "the second load needs no other"
    assert not [name for name in told["requested"] if name.endswith((".js", ".wasm"))], "programs"


def test_the_extension_holds_its_programs_and_asks_for_little(built: Path, package: Path) -> None:
    of_package = built / "package" / "resolve" / "main"
    names = {path.name for path in of_package.iterdir()}
    assert names == {abi.PROVENANCE_FILE, *(path.name for path in package.glob("*.wasm"))}
    written = (MANIFEST["background"]["service_worker"], MANIFEST["side_panel"]["default_path"])
    assert all((built / name).is_file() for name in written)
    asked = {key for key in MANIFEST if "permissions" in key or key == "content_scripts"}
    assert asked == {"permissions"}, "no host's permission"
    assert set(MANIFEST["permissions"]) == {"offscreen", "sidePanel", "unlimitedStorage"}
    policy = MANIFEST["content_security_policy"]["extension_pages"]
    assert "script-src 'self' 'wasm-unsafe-eval';" in policy


def test_a_build_without_a_package_says_what_to_do(built: Path, tmp_path: Path) -> None:
    del built  # what it needs is installed
    done = run_within(TIMEOUT_S, ["node", "build.mjs", tmp_path], cwd=EXTENSION)
    assert done.returncode == 1
    assert f"found: {tmp_path}\nhint: npm run build -- PACKAGE" in done.stderr

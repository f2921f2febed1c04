"""Firefox beside Chromium: the same drivers and packages, on lavapipe.

What is looked at is what browsers differ in: tokens, workers, pictures, storage, and how a read of
the GPU's results ends. The page's other scenarios are Chromium's (`test_page.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.commands import SERVE
from tests.tiny_answers import CONVERSATIONS
from tests.web.beginnings import chats
from tests.web.compiled import DRAFTED, SEEING_LITTLE, TINY, Compiler
from tests.web.cpu_runtime import ENOUGH, QUANT, Runtime, assistant, user
from tests.web.dawn import LAVAPIPE, run_driver
from tests.web.test_offline import PLUGIN
from tests.web.webllm import chat, drive_webllm, drive_workers

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TOKENS = 64
ASKED = ("Who are you?", "What comes after seven?", "Name a colour.")
REFUSED = "What is the capital of France?"  # some thirty tokens
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
LEFT = "left"
TRIES = 5  # of a busy machine
# A driver that takes one function for another.
MISCOMPILED = """
const { createShaderModule } = GPUDevice.prototype;
GPUDevice.prototype.createShaderModule = function ({ code, ...rest }) {
  return createShaderModule.call(this, { ...rest, code: code.replaceAll("exp(", "exp2(") });
};
"""


def steps() -> list[dict[str, Any]]:
    """Two replies, one that the page is left in, and the rest of that; the last step is a reply."""
    resumable = {"enabled": True, "sessionId": LEFT, "checkpointIntervalTokens": 6}
    left = {"messages": [user(REFUSED)], "extra_body": {"resumable": resumable}, **GREEDY}
    return [
        *(chat([user(text)], **GREEDY) for text in ASKED[:2]),
        {"op": "leave", "request": left, "after": 10, "overrides": {}},
        {"op": "resume", "session": LEFT, "stream": False},
        {"op": "reset"},
        chat([user(ASKED[2])], **GREEDY),
    ]


@pytest.fixture(scope="module")
def told(
    firefox: str, compiled: Compiler, fast_module: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("firefox")
    package = compiled(TINY, "webgpu", QUANT)
    return drive_webllm(package, steps(), folder, fast=fast_module, firefox=firefox)


def test_tokens_are_those_of_chromium(
    told: dict[str, Any], browser: str, compiled: Compiler, fast_module: Path, folder: Path
) -> None:
    asked = [chat([user(text)], **GREEDY) for text in ASKED]
    chromium = drive_webllm(compiled(TINY, "webgpu", QUANT), asked, folder, fast=fast_module)
    first, second, _, _, _, third = told["results"]
    assert [reply["watched"] for reply in (first, second, third)] == [
        reply["watched"] for reply in chromium["results"]
    ]
    assert first["usage"]["completion_tokens"] == TOKENS


def test_a_reply_goes_on_after_a_reload(told: dict[str, Any], runtime: Runtime) -> None:
    resumed = told["results"][3]
    reply, _ = runtime.greedy(runtime.prompt([user(REFUSED)]), ENOUGH)
    assert resumed["emittedTokens"] == TOKENS
    assert resumed["recoveredText"].startswith(runtime.decode(reply))


def test_the_device_is_tested_once(told: dict[str, Any]) -> None:
    """Of the page after its reload; the first one's test is what it finds passed."""
    stats = told["stats"]
    assert stats["device"] == "passed before"
    assert stats["reasons"] == []


def test_the_device_is_polled_while_a_read_waits(
    told: dict[str, Any], compiled: Compiler, fast_module: Path, folder: Path, firefox: str
) -> None:
    """Whether a timer ends its reads is measured by the clock, and may be missed beside other work.

    Then another device is asked for. Without one the answers are the same, and come later.
    """
    stats = told["stats"]
    asked = [chat([user(ASKED[0])], **GREEDY)]
    for _ in range(TRIES):
        if stats["timedDevices"]:
            break
        package = compiled(TINY, "webgpu", QUANT)
        stats = drive_webllm(package, asked, folder, fast=fast_module, firefox=firefox)["stats"]
    assert stats["timedDevices"] == 1
    assert stats["polls"] > 4


def test_a_device_that_computes_wrong_results_is_found(
    firefox: str, compiled: Compiler, fast_module: Path, folder: Path
) -> None:
    package = compiled(TINY, "webgpu", QUANT)
    with pytest.raises(AssertionError, match="computes wrong results"):
        drive_webllm(package, [], folder, fast=fast_module, firefox=firefox, init=MISCOMPILED)


def test_two_engines_in_a_worker_with_rows_from_the_host(
    firefox: str, compiled: Compiler, runtime: Runtime, fast_module: Path, folder: Path
) -> None:
    """Steps that run ahead in a worker are those of the page, below."""
    package = compiled(TINY, "webgpu", QUANT)
    result = drive_workers(
        package, ASKED, TOKENS, folder, fast=fast_module, firefox=firefox, rows=True
    )
    prompts = [runtime.prompt([user(text)]) for text in ASKED]
    expected = [runtime.decode(runtime.greedy(prompt, TOKENS)[0]) for prompt in prompts]
    assert [*result["both"], result["one"]] == expected
    stats = result["stats"]
    assert stats["devices"] == 2
    assert stats["replayedSteps"] > 8
    assert stats["tableBytesOnHost"] > 0
    assert stats["reasons"] == stats["errors"] == []


SCENARIOS = (
    "start",
    "memory",
    "fast_by_default",
    "sees_and_hears",
    "reload_in_a_reply",
    "beginnings",
    "beginnings_after_a_reload",
    "nine_libraries",
)
FITTING = ["default", "f16", "int8"]
"""Of nine: lavapipe has 16-bit floats and packed products, and Firefox no subgroups."""


@pytest.fixture(scope="module")
def played(
    firefox: str,
    page: Path,
    compiled: Compiler,
    runtime: Runtime,
    nine_libraries: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("page")
    (memory,) = (each for each in CONVERSATIONS if each.name == "memory")
    messages = [
        message
        for question, answer in memory.turns
        for message in (user(question), assistant(answer))
    ]
    refusal, _ = runtime.greedy(runtime.prompt([user(REFUSED)]), ENOUGH)
    # Behind the last answer the client has forwarded nothing: no end of turn, no next opening.
    ending = len(runtime.encode("<turn|>\n<|turn>model\n"))
    axe = PLUGIN.parents[1] / "node_modules" / "axe-core" / "axe.min.js"
    job = {
        "group": "firefox",
        "page": str(page),
        "packages": {
            "seeing": str(compiled(SEEING_LITTLE, "webgpu", QUANT)),
            "nine": str(nine_libraries),
        },
        "firefox": firefox,
        "axe": str(axe),
        "output": str(folder),
        "answers": {
            "beginnings": chats(runtime),
            "memory": memory.turns,
            "memoryTokens": len(runtime.prompt(messages)) - ending,
            "refusal": [REFUSED, runtime.decode(refusal)],
            "turns": memory.turns,
            "fitting": FITTING,
        },
    }
    done = run_driver("page_driver.mjs", job, folder, LAVAPIPE.environment(folder))
    scenarios: dict[str, Any] = done["scenarios"]
    return scenarios


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str, played: dict[str, Any]) -> None:
    assert set(played) == set(SCENARIOS), "every scenario has a test"
    assert played[name]["error"] is None, played[name]["error"]


def test_the_page_starts_without_its_server(
    firefox: str, page: Path, compiled: Compiler, runtime: Runtime, folder: Path
) -> None:
    name = "without_the_server"
    package = compiled(DRAFTED, "webgpu", QUANT)
    serve = [*SERVE, str(package)]
    serve += ["--page", str(page), "--port", "0", "--no-open"]
    reply, _ = runtime.greedy(runtime.prompt([user(ASKED[0])]), ENOUGH)
    job = {
        "page": str(page),
        "plugin": str(PLUGIN),
        "firefox": firefox,
        "output": str(folder),
        "only": [name],
        "serve": serve,
        "question": ASKED[0],
        "answer": runtime.decode(reply),
    }
    done = run_driver("offline_driver.mjs", job, folder, LAVAPIPE.environment(folder))
    error = done["scenarios"][name]["error"]
    assert error is None, error

"""`gemma4-web/fast` on Dawn: tokens, logits and errors of a run without it; what it leaves behind.

The conversations are those of `fast_conversation.mjs`; the stock client's are in test_webllm.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile import abi
from tests.web.compiled import SIZES, TINY, Compiler
from tests.web.cpu_runtime import QUANT, Runtime, system, user
from tests.web.dawn import HERE, VulkanDriver, library_of, run_driver
from tests.web.webllm import drive_workers

pytestmark = pytest.mark.dawn

CAPACITY = 512
CHUNK = SIZES[TINY].prefill_chunk
TOKENS = 20
REPLIES = 300
BYTES_A_REPLY = 4000  # of JavaScript's heap: less than a step's list of launches takes
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Outcome:
    """Name, token and digests of every step, what the module counted, what else a scene found."""

    steps: list[str]
    stats: dict[str, Any]
    found: dict[str, Any]


Play = Callable[..., Outcome]


@pytest.fixture(scope="module")
def play(
    compiled: Compiler,
    lavapipe: VulkanDriver,
    fast_module: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Play:
    """Plays a scene on `tiny`, with the module or without, once; a WebGPU error fails it."""
    package = compiled(TINY, "webgpu", "q4f16")
    played: dict[str, Outcome] = {}

    def run(scene: str, *, fast: bool, **more: Any) -> Outcome:
        key = json.dumps([scene, fast, more], sort_keys=True)
        if key not in played:
            played[key] = start(scene, fast=fast, **more)
        return played[key]

    def start(scene: str, *, fast: bool, **more: Any) -> Outcome:
        folder = tmp_path_factory.mktemp(scene)
        job = {"package": str(package), "output": str(folder), "scene": scene, **more}
        job |= {"library": library_of(package), "capacity": CAPACITY}
        if fast:
            job["fast"] = str(fast_module / "fast.js")
        result = run_driver("fast_conversation.mjs", job, folder, lavapipe.environment(folder))
        return Outcome(result.pop("steps"), result.pop("stats", {}), result)

    return run


@pytest.mark.slow
def test_a_long_conversation_is_the_same_token_by_token(play: Play) -> None:
    plain, fast = play("long", fast=False), play("long", fast=True)
    assert len(plain.steps) >= 200
    assert fast.steps == plain.steps
    assert fast.stats["reasons"] == []
    assert fast.stats["aheadSteps"] > 75
    assert fast.stats["replayedSteps"] > 50
    assert fast.stats["repeatedSteps"] > 0, "values of steps that ran ahead were looked at"
    assert fast.stats["plainSteps"] < 10


@pytest.mark.slow
def test_prompts_that_begin_alike_are_the_same_with_beginnings_kept(play: Play) -> None:
    """Logits of every step to the last bit, with room for all beginnings and for a few of them."""
    plain = play("begun", fast=False)
    on_host = {"rows": {"room": 1 << 30}}
    for kept, chunks, more in ((2**26, 25, {}), (2**20, 5, on_host)):
        fast = play("begun", fast=True, kept=kept, **more)
        assert fast.steps == plain.steps
        assert fast.stats["reasons"] == []
        assert fast.stats["keptTokens"] >= CHUNK * chunks
        assert 0 < fast.stats["keptBytes"] <= kept


@pytest.mark.slow
def test_beginnings_from_storage_are_those_of_a_fresh_prompt(play: Play) -> None:
    """To the last bit, in models that were loaded later; of a damaged file nothing is used."""
    plain = play("lasting", fast=False)
    fast = play("lasting", fast=True, kept=2**26)
    assert fast.steps == plain.steps
    assert fast.stats["reasons"] == []
    assert "problem" not in fast.found
    before, another, whole, damaged = fast.found["stages"]
    assert before["copied"] == 0
    assert another["copied"] == whole["copied"] == 5 * CHUNK
    assert another["read"] == another["written"] > 0
    assert damaged["copied"] == 2 * CHUNK
    assert len([name for name in fast.found["files"] if name.endswith(".data")]) == 5
    assert len([name for name in fast.found["left"] if name.endswith(".data")]) == 2
    assert len([name for name in fast.found["left"] if ".of-" in name]) == 2


def table_bytes(package: Path) -> int:
    """Bytes of the table of per-layer embeddings, by the list of a package's tensors."""
    shards = json.loads((package / "tensor-cache.json").read_text())["records"]
    records = [record for shard in shards for record in shard["records"]]
    return sum(
        record["nbytes"]
        for record in records
        if record["name"].startswith("embed_tokens_per_layer.")
    )


@pytest.fixture(scope="module")
def with_table(play: Play) -> Outcome:
    return play("rows", fast=True)


@pytest.mark.slow
def test_rows_from_the_host_change_nothing_but_the_memory(
    play: Play, with_table: Outcome, compiled: Compiler
) -> None:
    rows = play("rows", fast=True, rows={"room": 1 << 30})
    assert rows.found["hasRowsOnHost"] is True
    assert rows.steps == with_table.steps
    assert rows.stats["reasons"] == ["disable() was called"]
    size = table_bytes(compiled(TINY, "webgpu", "q4f16"))
    assert rows.stats["tableBytesOnHost"] == size > 0
    assert with_table.stats["tableBytesOnHost"] == 0
    assert rows.stats["replayedSteps"] > 10
    assert rows.stats["aheadSteps"] == 0
    assert 0 < rows.stats["tableReads"] < rows.stats["tableRows"], "rows are kept, read together"
    saved = with_table.found["bufferBytes"] - rows.found["bufferBytes"]
    assert saved > size // 2, "the window has a chunk's rows"


@pytest.mark.slow
@pytest.mark.parametrize(
    "scene", [pytest.param("raced", marks=pytest.mark.exhaustive), "two", "lost"]
)
def test_conversations_with_rows_from_the_host_are_the_same(play: Play, scene: str) -> None:
    """A long one, and one that is raced, with guesses: tests/web/test_drafts.py."""
    plain = play(scene, fast=False)
    rows = play(scene, fast=True, rows={"room": 1 << 30})
    assert rows.steps == plain.steps
    assert rows.stats["tableBytesOnHost"] > 0
    assert rows.stats["replayedSteps"] > 20
    assert rows.stats["aheadSteps"] == 0
    assert rows.stats["plainSteps"] < 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "is_used", "reason"),
    [
        ({"writable": 4096}, True, "are kept in memory: QuotaExceededError"),
        ({"room": 4096}, False, "stay on the device: the browser has no room"),
        ({"isSync": False}, False, "in a dedicated worker alone"),
    ],
)
def test_a_browser_without_room_for_the_rows(
    play: Play, with_table: Outcome, limits: dict[str, Any], is_used: bool, reason: str
) -> None:
    rows = play("rows", fast=True, rows=limits)
    assert rows.found["hasRowsOnHost"] is is_used
    assert rows.steps == with_table.steps
    assert any(reason in said for said in rows.stats["reasons"]), rows.stats["reasons"]
    assert (rows.stats["tableBytesOnHost"] > 0) is is_used


@pytest.mark.slow
def test_two_models_in_one_thread_keep_apart(play: Play) -> None:
    plain, fast = play("two", fast=False), play("two", fast=True)
    assert fast.steps == plain.steps
    assert fast.stats["devices"] == fast.stats["libraries"] == 2
    assert fast.stats["aheadSteps"] > 40


@pytest.mark.slow
def test_a_profile_has_every_launch_and_changes_no_token(play: Play) -> None:
    plain, fast = play("profiled", fast=False), play("profiled", fast=True)
    assert fast.steps == plain.steps
    assert fast.stats["reasons"] == []
    prompt, token = fast.found["profile"]["steps"]
    assert (prompt["step"], prompt["tokens"]) == ("prefill", 15)
    assert (token["step"], token["tokens"]) == ("decode", 1)
    expected = {
        "prefill": {"prefill_attention", "gemm_", "qk_norm_rope_cache"},
        "decode": {"decode_attention", "normed_gemv_", "sample_top_p", "softmax_probs"},
    }
    for step in (prompt, token):
        kernels = step["kernels"]
        names = [one["kernel"] for one in kernels]
        for name in expected[step["step"]]:
            assert any(one.startswith(name) for one in names), names
        assert all(one["microseconds"] > 0 and one["launches"] > 0 for one in kernels)
        assert sum(one["share"] for one in kernels) == pytest.approx(1)
        linear = [one for one in kernels if one["operator"] == "linear"]
        assert linear
        assert all(one["bytes"] > 0 for one in linear)
        assert step["wallMicroseconds"] > 0


def test_disable_in_the_middle_of_a_reply_changes_no_token(play: Play) -> None:
    plain, fast = play("disable", fast=False), play("disable", fast=True)
    assert fast.steps == plain.steps
    assert fast.stats["enabled"] is False
    assert fast.stats["aheadSteps"] > 0


@pytest.mark.slow
def test_a_lost_device_ends_the_reply_and_a_new_one_goes_on(play: Play) -> None:
    plain, fast = play("lost", fast=False), play("lost", fast=True)
    assert plain.found["seen"][-1] != "answered"
    assert fast.found["seen"][-1] != "answered"
    assert fast.steps == plain.steps
    assert fast.stats["devices"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fake", "reason"),
    [
        ("library without interface", "no driver interface"),
        ("library of another version", "has version 9, this module understands 1"),
        ("library without a function", "lacks gemma4_driver_room"),
        ("another random generator", "random numbers that the module cannot foresee"),
        ("sizes in bind groups", "bind groups of another form"),
        ("debug groups in encoders", "encoder.pushDebugGroup"),
        ("dynamic offsets", "bind groups of another form"),
    ],
)
def test_what_the_module_does_not_know_it_leaves_alone(play: Play, fake: str, reason: str) -> None:
    plain, fast = play("short", fast=False), play("short", fast=True, fake=fake)
    assert any(reason in said for said in fast.stats["reasons"]), fast.stats["reasons"]
    assert fast.stats["aheadSteps"] == 0
    if fake != "another random generator":  # which draws other tokens by itself
        assert fast.steps == plain.steps


@pytest.mark.slow
def test_another_random_generator_draws_its_own_tokens(play: Play) -> None:
    fake = "another random generator"
    plain, fast = play("short", fast=False, fake=fake), play("short", fast=True, fake=fake)
    assert fast.steps == plain.steps
    assert fast.steps != play("disable", fast=False).steps[: len(fast.steps)]


@pytest.mark.slow
def test_hundreds_of_replies_leave_nothing_behind(play: Play) -> None:
    samples = play("leak", fast=True, count=REPLIES, tokens=3).found["samples"]
    settled, last = samples[len(samples) // 2], samples[-1]
    assert last["buffers"] == settled["buffers"]
    assert last["heap"] < settled["heap"] + BYTES_A_REPLY * REPLIES / 2


def test_versions_are_those_that_the_module_was_made_for() -> None:
    """Another client or runtime: run these tests with it, read what changed, then raise it here."""
    made_for = dict(
        re.findall(r'(\w+): "([^"]+)"', (ROOT / "web/src/library/versions.ts").read_text())
    )
    web = json.loads((HERE / "package.json").read_text())["dependencies"]
    page = json.loads((ROOT / "examples/web/package.json").read_text())["dependencies"]
    project = (ROOT / "pyproject.toml").read_text()
    tvm = re.search(r'"apache-tvm==([^"]+)"', project)
    assert tvm is not None
    assert made_for["webLlm"] == abi.WEBLLM_VERSION
    assert made_for["webLlm"] == web["@mlc-ai/web-llm"] == page["@mlc-ai/web-llm"]
    assert made_for["webRuntime"] == web["@mlc-ai/web-runtime"]
    assert tvm[1].startswith(made_for["tvm"])


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize(
    ("tabs", "rows"),
    [(True, False), (False, True)],
    ids=["two tabs", "one worker with rows from the host"],
)
def test_two_engines_of_the_stock_client(
    browser: str,
    compiled: Compiler,
    runtime: Runtime,
    fast_module: Path,
    tmp_path: Path,
    tabs: bool,
    rows: bool,
) -> None:
    """Greedy replies at the same time, then one more; a tab is suspended in its reply."""
    asked = ("Who are you?", "What comes after seven?", "Name a colour.")
    package = compiled(TINY, "webgpu", QUANT)
    result = drive_workers(package, asked, TOKENS, tmp_path, fast=fast_module, tabs=tabs, rows=rows)
    prompts = [runtime.prompt([system(""), user(text)]) for text in asked]
    expected = [runtime.decode(runtime.greedy(prompt, TOKENS)[0]) for prompt in prompts]
    assert [*result["both"], result["one"]] == expected
    assert len(set(expected)) == 3
    stats = result["stats"]
    assert stats["devices"] == stats["libraries"] == (1 if tabs else 2)
    assert stats["replayedSteps" if rows else "aheadSteps"] > 8
    assert stats["tableBytesOnHost"] == (table_bytes(package) if rows else 0), "one was unloaded"
    assert stats["reasons"] == stats["errors"] == []

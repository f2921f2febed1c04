"""The example page, used as a person would, in headless Chromium.

`page_driver.mjs` runs the scenarios of a group in one browser, one after the other; each has its
test here.
PAGE_SCREENSHOTS names a folder that keeps the screenshots.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.abi import DRAFTER_CACHE_FILE
from tests.marks import slow_unless
from tests.tiny_answers import CONVERSATIONS
from tests.web.beginnings import chats
from tests.web.compiled import DRAFTED, EMBEDDING, EVERY, SEEING_LITTLE, TINY, Compiler
from tests.web.cpu_runtime import ENOUGH, Runtime, assistant, system, user
from tests.web.dawn import run_driver
from tests.web.webllm import find_browser

pytestmark = pytest.mark.browser

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "examples" / "web"
MANIFEST = "mlc-model-manifest.json"
CONFIG = "mlc-chat-config.json"
DRAFTER_SHARD = "params_shard_drafter_0.bin"
GIB = 2**30
REFUSED = "What is the capital of France?"  # some thirty tokens, most of which the drafter guesses
RULE = "Cost: $& or $1."  # the client would read `$&` as a place for something else

REAL = (
    "first_run",
    "memory",
    "fast_by_default",
    "regenerate",
    "system_prompt",
    "calculator",
    "sees_and_hears",
    "stop",
    "device_lost",
    "without_fast",
    "table_in_storage",
    "reload_and_repair",
    "beginnings",
    "beginnings_after_a_reload",
    "guesses",
    "drafter_gone",
    "profile",
    "search_without_a_chat",
)
SCRIPTED = (
    "refusals",
    "libraries",
    "memory_budget",
    "damaged_on_the_server",
    "storage_is_full",
    "pause_and_reload",
    "offline",
    "answers",
    "tool_call",
    "edit_undo_keep",
    "speed_by_the_clock",
    "fast_switch",
    "table_switch",
    "stop_and_close",
    "context_full",
    "lost_twice",
    "one_tab_owns_the_model",
    "change_the_context",
    "clearing",
    "looks",
    "drafter_switch",
    "without_its_drafter",
    "profile",
    "garbage_while_checking",
    "worker_gone",
    "page_killed",
    "database_closed",
    "plain_http",
)
CHATS = (
    "rename",
    "keyboard_only",
    "search",
    "export_and_import",
    "damaged_imports",
    "two_tabs",
    "delete_while_writing",
    "search_by_meaning",
)
LOOKS = (
    "hub_id",
    "caret",
    "settings_sections",
    "phones",
)
LINKS = (
    "strange_link",
    "right_to_left",
)
OFFERED = (
    "faulty_lists",
    "list_of_models",
    "switch_models",
)
MEDIA = (
    "attach_paste_drop",
    "container",
    "greyed_out",
    "kept_with_the_chat",
    "files_of_chats",
    "other_package",
)
CAPTURE = (
    "bad_files",
    "sounds",
    "recording",
    "camera",
    "videos",
)
# A refusal, a first visit, a conversation and its end: what `make test` plays.
QUICK = ("refusals", "storage_is_full", "answers", "tool_call", "edit_undo_keep", "clearing")
# A browser each.
GROUPS = {
    "scripted": SCRIPTED,
    "chats": (*CHATS, *LOOKS, *LINKS, *OFFERED),
    "media": (*MEDIA, *CAPTURE),
    "real": REAL,
}
Results = dict[str, dict[str, Any]]


def change_file(package: Path, name: str, content: bytes) -> None:
    """Replace a file, and what `provenance.json` says of it."""
    (package / name).write_bytes(content)
    path = package / "provenance.json"
    provenance = json.loads(path.read_text())
    provenance["files"][name] = {
        "nbytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    path.write_text(json.dumps(provenance))


def change_provenance(package: Path, **build: object) -> None:
    """Let a package say other things about itself than its compilation did."""
    path = package / "provenance.json"
    provenance = json.loads(path.read_text())
    provenance["build"].update(build)
    for library in provenance["libraries"]:  # what it needs stands there
        library.update({name: value for name, value in build.items() if name in library})
    path.write_text(json.dumps(provenance))


def with_media(path: Path) -> bytes:
    """Return a manifest as a package has it that takes pictures and sounds."""
    manifest = json.loads(path.read_text())
    prompt = {"prefix_token_ids": [5], "placeholder_token_id": 6, "suffix_token_ids": [7]}
    resize = {"mode": "stretch", "height": 673, "width": 960}
    pixels = {"kind": "image_decode", "format": "rgb_u8", "layout": "nhwc"}
    samples = {"kind": "audio_decode", "format": "pcm_f32", "sample_rate_hz": 16_000, "channels": 1}
    manifest["tasks"]["chat.completions"]["inputs"] |= {
        "image": {
            "processor": {**pixels, "resize": resize, "num_embeddings": 280},
            "adapter": "image_embed",
            "prompt": prompt,
        },
        "audio": {
            "processor": {**samples, "min_samples": 1_600, "max_samples": 480_000},
            "adapter": "audio_embed",
            "prompt": prompt,
        },
    }
    return json.dumps(manifest).encode()


def of_embeddings(path: Path) -> bytes:
    """Return a manifest as an embedder's package has it."""
    manifest = json.loads(path.read_text())
    (task,) = manifest["tasks"].values()
    return json.dumps({**manifest, "tasks": {"embeddings": task}}).encode()


@pytest.fixture(scope="module")
def packages(
    compiled: Compiler, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("served")
    quants = {"tiny": "q4f32", "damaged": "q4f32", "f16": "q4f16", "tooled": "q4f32"}
    quants |= {
        "embedder": "q4f32",
        "large": "q4f32",
        "media": "q4f32",
        "guessing": "q4f32",
        "misguessing": "q4f32",
    }
    folders = {name: root / name for name in quants}
    for name, quant in quants.items():
        shutil.copytree(compiled(TINY, "webgpu", quant), folders[name])
    if "libraries" in (wanted(request, "scripted") or SCRIPTED):  # nine compilations for it alone
        folders["several"] = compiled(TINY, "webgpu", "q4f16", libraries=EVERY)
    shard = bytearray((folders["damaged"] / "params_shard_0.bin").read_bytes())
    shard[1000] ^= 1
    (folders["damaged"] / "params_shard_0.bin").write_bytes(shard)
    # A template that knows reasoning and tools, of a model that is not `tiny`.
    template = "<|think|> <|tool_response>"
    change_file(folders["tooled"], "chat_template.jinja", template.encode())
    change_provenance(folders["tooled"], source={"kind": "hub", "model": "you/gemma-4-E2B-it"})
    for name in ("guessing", "misguessing"):  # a scripted engine asks for no more of a drafter
        for file in (DRAFTER_CACHE_FILE, DRAFTER_SHARD):
            change_file(folders[name], file, f"{file} of {name}".encode())
    (folders["misguessing"] / DRAFTER_SHARD).write_bytes(b"something else")
    change_file(folders["embedder"], MANIFEST, of_embeddings(folders["embedder"] / MANIFEST))
    change_file(folders["media"], MANIFEST, with_media(folders["media"] / MANIFEST))
    change_provenance(folders["media"], drops_padding=True)
    settings = json.loads((folders["media"] / CONFIG).read_text()) | {"context_window_size": 2048}
    change_file(folders["media"], CONFIG, json.dumps(settings).encode())
    large = {
        "features": [],
        "max_binding_bytes": 2**27,
        "weights_bytes": int(1.25 * GIB),
        "kv_sliding_bytes": 0,
        "kv_full_bytes": GIB,
        "activation_bytes": GIB // 5,
    }
    change_provenance(
        folders["large"],
        source={"kind": "hub", "model": "you/gemma-4-E4B-it"},
        requirements=large,
    )
    return {**folders, "missing": root / "missing"}


@pytest.fixture(scope="module")
def answers(runtime: Runtime) -> dict[str, Any]:
    """What the CPU build of the same model says; `memory` is the shipped model's own exam."""
    (memory,) = (each for each in CONVERSATIONS if each.name == "memory")
    messages = []
    for question, answer in memory.turns:
        messages += [user(question), assistant(answer)]
    tokens = runtime.prompt(messages)
    # Behind the last answer the client has forwarded nothing: no end of turn, no next opening.
    ending = len(runtime.encode("<turn|>\n<|turn>model\n"))
    question = memory.turns[1][0]
    reply, _ = runtime.greedy(runtime.prompt([system(RULE), user(question)]), ENOUGH)
    refusal, _ = runtime.greedy(runtime.prompt([user(REFUSED)]), ENOUGH)
    return {
        "beginnings": chats(runtime),
        "memory": memory.turns,
        "memoryTokens": len(tokens) - ending,
        "system": [RULE, question, runtime.decode(reply)],
        "refusal": [REFUSED, runtime.decode(refusal)],
    }


@pytest.fixture(scope="module")
def play(
    page: Path,
    packages: dict[str, Path],
    compiled: Compiler,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Results]:
    """Plays the scenarios of a browser, once; gives what became of each."""
    kept = os.environ.get("PAGE_SCREENSHOTS")
    folder = Path(kept).resolve() if kept else tmp_path_factory.mktemp("page")
    folder.mkdir(parents=True, exist_ok=True)
    job: dict[str, Any] = {
        "page": str(page),
        "packages": {name: str(path) for name, path in packages.items()},
        "chromium": find_browser(),
        "axe": str(PAGE / "node_modules" / "axe-core" / "axe.min.js"),
        "output": str(folder),
        "shots": bool(kept),
    }

    @cache
    def run(group: str) -> Results:
        needs: dict[str, Any] = {"group": group, "only": wanted(request, group)}
        if group == "real":
            request.getfixturevalue("browser")
            real = {"drafted": DRAFTED, "seeing": SEEING_LITTLE, "embedder": EMBEDDING}
            made = {name: str(compiled(model, "webgpu", "q4f32")) for name, model in real.items()}
            needs["answers"] = request.getfixturevalue("answers")
            needs["packages"] = {**job["packages"], **made}
        done = run_driver("page_driver.mjs", {**job, **needs}, folder, os.environ)
        return Results(done["scenarios"])

    return run


def wanted(request: pytest.FixtureRequest, group: str) -> list[str] | None:
    """The scenarios of a group whose tests run; None for all of them."""
    tests = {item.name for item in request.session.items if item.path == Path(__file__)}
    names = [name for name in GROUPS[group] if f"test_scenario[{group}-{name}]" in tests]
    return names if len(names) < len(GROUPS[group]) else None


@pytest.mark.parametrize(
    ("group", "name"),
    slow_unless(
        lambda group, name: group == "scripted" and name in QUICK,
        [(group, name) for group, names in GROUPS.items() for name in names],
    ),
)
def test_scenario(
    group: str, name: str, play: Callable[[str], Results], request: pytest.FixtureRequest
) -> None:
    expected = wanted(request, group) or GROUPS[group]
    assert set(play(group)) == set(expected), "every scenario has a test"
    assert play(group)[name]["error"] is None, play(group)[name]["error"]

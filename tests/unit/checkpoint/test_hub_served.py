"""Commands beside a hub on this machine: what is asked for, downloaded, said and taken."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma4_compile import tiny
from tests.hub_server import MODEL, HubServer, serve
from tests.marks import slow_unless

FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    tiny.materialize(tmp_path / "model")
    with serve({name: (tmp_path / "model" / name).read_bytes() for name in FILES}) as hub:
        yield hub


LEAN = "from gemma4_compile.system.loading import without_torch\nwith without_torch(): "
OPEN = (
    f"{LEAN}from gemma4_compile.checkpoint.sources import open_source\n"
    f"with open_source({MODEL!r}, None, weights=False) as source: print(source.origin)"
)


def run(
    hub: HubServer, cache: Path, *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **hub.environment(str(cache)), **more},
        timeout=300,
        check=False,
    )


def plan(hub: HubServer, cache: Path) -> subprocess.CompletedProcess[str]:
    return run(hub, cache, "-m", "gemma4_compile", MODEL, "--target", "cpu", "--plan")


@pytest.mark.slow  # what offline finds in the cache is asked below
def test_a_library_is_compiled_offline_from_a_cache_without_generation_config(
    hub: HubServer, tmp_path: Path
) -> None:
    cache, output = tmp_path / "cache", tmp_path / "package"
    assert plan(hub, cache).returncode == 0  # which fetches config.json alone
    asked = len(hub.asked)
    done = run(
        hub, cache, "-m", "gemma4_compile", MODEL, "--target", "cpu", "--quant", "f32",
        "--only", "library", "-o", str(output), HF_HUB_OFFLINE="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(hub.asked) == asked
    assert "tokens that it forbids (`suppress_tokens`) are not left out" in done.stderr
    assert done.stderr.count("warning:") == 1
    assert list(output.glob("model.*"))


@pytest.mark.slow
def test_a_generation_config_that_never_was_is_not_missed_offline(
    hub: HubServer, tmp_path: Path
) -> None:
    first = run(hub, tmp_path / "cache", "-c", OPEN)
    assert first.returncode == 0, first.stderr
    offline = run(hub, tmp_path / "cache", "-c", OPEN, HF_HUB_OFFLINE="1")
    assert offline.stdout == first.stdout
    assert "warning" not in offline.stderr


@pytest.mark.slow
def test_no_byte_of_a_config_of_200_mb_is_downloaded(hub: HubServer, tmp_path: Path) -> None:
    hub.files["config.json"] = 200 << 20
    done = plan(hub, tmp_path / "cache")
    assert done.returncode == 1
    assert "`config.json` of `someone/model` is too large: 209715200 bytes" in done.stderr
    assert hub.sent == 0


@pytest.mark.parametrize("status", slow_unless(lambda status: status == 401, [401, 403]))
def test_a_token_is_in_no_message(status: int, hub: HubServer, tmp_path: Path) -> None:
    hub.refusal = status, "no right for hf_secret"
    done = plan(hub, tmp_path / "cache")
    assert done.returncode == 1
    assert "hint: " in done.stderr
    assert "hf_secret" not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_config_of_a_cache_is_taken_where_the_hub_takes_no_requests(
    hub: HubServer, tmp_path: Path
) -> None:
    first = plan(hub, tmp_path / "cache")
    hub.refusal = 429, "we had to rate limit you, hf_secret"
    done = plan(hub, tmp_path / "cache")
    assert done.returncode == 0
    assert done.stdout == first.stdout
    assert "the hub was not asked about `someone/model` (it answered 429)" in done.stderr
    assert "hf_secret" not in done.stderr


@pytest.mark.slow
def test_of_a_tokenizer_nothing_else_is_downloaded(hub: HubServer, tmp_path: Path) -> None:
    ask = (
        f"{LEAN}from gemma4_compile.checkpoint import hub\n"
        f"print(*sorted(each.name for each in hub.fetch_tokenizer({MODEL!r}, None).iterdir()))"
    )
    hub.files["model.safetensors"] = 1 << 40
    first = run(hub, tmp_path / "cache", "-c", ask)
    assert first.returncode == 0, first.stderr
    assert first.stdout.split() == [each for each in sorted(FILES) if each != "config.json"]
    offline = run(hub, tmp_path / "cache", "-c", ask, HF_HUB_OFFLINE="1")
    assert offline.stdout == first.stdout
    del hub.files["tokenizer.json"]
    missing = run(hub, tmp_path / "other", "-c", ask)
    assert "Error" in missing.stderr
    assert "tokenizer.json" in missing.stderr

"""A package of a hub in the commands: fetched, then used where nothing can be asked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.commands import CHAT
from tests.fake_hub import COMMIT
from tests.hub_server import MODEL, serve


@pytest.mark.slow
def test_a_package_of_the_hub_answers_offline_as_its_directory_does(
    tiny_package: Path, tmp_path: Path
) -> None:
    ask = ("--prompt", "Hello", "--greedy", "--max-tokens", "6")
    files = {path.name: path.read_bytes() for path in tiny_package.iterdir()}
    with serve(files) as hub:
        variables = {**os.environ, **hub.environment(str(tmp_path / "cache"))}

        def chat(package: str, **more: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*CHAT, package, *ask],
                capture_output=True,
                text=True,
                env={**variables, **more},
                cwd=tmp_path,
                timeout=300,
                check=False,
            )

        first = chat(MODEL)
        assert first.returncode == 0, first.stderr
        assert f"{MODEL} is at commit {COMMIT}" in first.stderr
        asked = len(hub.asked)
        offline = chat(MODEL, HF_HUB_OFFLINE="1")
        assert len(hub.asked) == asked
    assert offline.stdout == first.stdout == chat(str(tiny_package)).stdout
    assert "fetched" in first.stderr
    assert "fetched" not in offline.stderr

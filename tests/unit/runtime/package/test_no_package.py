"""What is given in the place of a package; the commands' own words are in options/test_process."""

from __future__ import annotations

from pathlib import Path

from gemma4_compile.runtime.package.no_package import no_package


def test_an_adapter_beside_a_model_is_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").touch()
    error = no_package(tmp_path)
    assert "is an adapter" in str(error)
    assert f"--adapter {tmp_path}" in (error.hint or "")
    (tmp_path / "config.json").touch()
    error = no_package(tmp_path)
    assert "is a checkpoint" in str(error)
    assert f"gemma4-compile {tmp_path}" in (error.hint or "")

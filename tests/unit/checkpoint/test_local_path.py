from __future__ import annotations

from pathlib import Path

from gemma4_compile.checkpoint.local_path import local_path


def test_the_home_directory_of_nobody_is_a_name() -> None:
    assert local_path("~") == Path.home()
    assert local_path("~nobody-of-this-name/x") == Path("~nobody-of-this-name/x")

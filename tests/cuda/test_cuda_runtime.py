"""CUDA's runtime library, called past TVM."""

from __future__ import annotations

from pathlib import Path

from tests.cuda import fake


def test_what_cuda_refuses_is_said_in_its_words(package: Path) -> None:
    fake.run("errors_are_named", package)

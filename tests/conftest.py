"""Fixtures that several folders of tests share."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny`, compiled for `cpu` in f32 with a context of 256 tokens."""
    from tests import packages  # loads the compiler, which many tests do not need

    folder = tmp_path_factory.mktemp("tiny") / "package"
    return packages.compile_package("tiny", "f32", folder, context_length=256)


def pytest_configure() -> None:
    """Processes that tests start must hear Ctrl-C, even if this one was started to ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)

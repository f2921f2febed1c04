"""Kernels are timed by events of CUDA's, of which the fake one says a millisecond each."""

from __future__ import annotations

from pathlib import Path

from tests.cuda import fake


def test_kernels_are_timed_by_events(package: Path) -> None:
    fake.run("profiled", package)

"""Loading onto a device that is not the host's memory."""

from __future__ import annotations

from pathlib import Path

from tests.cuda import fake


def test_weights_take_one_piece_of_the_hosts_memory(package: Path) -> None:
    fake.run("streamed_weights", package)


def test_what_does_not_fit_is_refused_before_it_is_loaded(package: Path) -> None:
    fake.run("refused_by_room", package)

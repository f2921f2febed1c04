"""Pages of virtual memory: on the host or the device, at one address."""

from __future__ import annotations

from pathlib import Path

from tests.cuda import fake


def test_a_page_of_experts_has_the_same_bytes_at_the_same_address(package: Path) -> None:
    fake.run("pages_move", package)

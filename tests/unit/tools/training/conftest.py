from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small products: threads that wait for each other take many times as long."""
    torch = pytest.importorskip("torch", reason="torch is not installed (make setup)")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

"""One package for all tests on the fake CUDA."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from tests.shared import made_once, shared_folder


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny` for `cuda`."""
    if sys.platform != "linux":
        pytest.skip("packages for cuda are linked and run on Linux")
    from tests.cuda import fake  # loads the compiler

    return made_once(shared_folder(tmp_path_factory) / "tiny-cuda", fake.compile_tiny)


@pytest.fixture(scope="session")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny` with its drafter for `cuda`."""
    if sys.platform != "linux":
        pytest.skip("packages for cuda are linked and run on Linux")
    from tests.cuda import fake  # loads the compiler

    folder = shared_folder(tmp_path_factory) / "tiny-drafted-cuda"
    return made_once(folder, partial(fake.compile_tiny, drafter="tiny"))


@pytest.fixture(scope="session")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts for `cuda`."""
    if sys.platform != "linux":
        pytest.skip("packages for cuda are linked and run on Linux")
    from tests.cuda import fake  # loads the compiler

    folder = made_once(shared_folder(tmp_path_factory) / "mixture-cuda", fake.make_mixture)
    return folder / "package"


@pytest.fixture(scope="session")
def mixture_on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for `cpu`."""
    if sys.platform != "linux":
        pytest.skip("the fake CUDA is linked and run on Linux")
    from tests.cuda import fake  # loads the compiler

    make = partial(fake.make_mixture, target="cpu")
    folder = made_once(shared_folder(tmp_path_factory) / "mixture-cpu", make)
    return folder / "package"

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.errors import CheckpointError, UsageError
from gemma4_compile.verification.adapters import adapters_of, check_adapters

PACKAGE = Path("package")
DIRECTORY = {"kind": "directory", "config": "sha256:a", "weights": "sha256:b"}
HUB = {**DIRECTORY, "kind": "hub", "model": "me/adapter", "revision": "c0ffee"}


def build(*adapters: dict[str, str]) -> Any:
    return {"source": {"kind": "tiny", "adapters": list(adapters)}}


def test_a_package_names_its_adapters_of_the_hub() -> None:
    assert adapters_of(PACKAGE, (), build(HUB, HUB)) == ("me/adapter@c0ffee",) * 2
    assert adapters_of(PACKAGE, (), {"source": {}}) == ()


def test_adapters_of_directories_are_asked_for() -> None:
    with pytest.raises(UsageError) as error:
        adapters_of(PACKAGE, (), build(HUB, DIRECTORY))
    assert "--adapter" in str(error.value.hint)
    assert adapters_of(PACKAGE, ("one", "two"), build(HUB, DIRECTORY)) == ("one", "two")


@pytest.mark.parametrize("noted", [(), (HUB, HUB)])
def test_others_in_number_are_refused(noted: tuple[dict[str, str], ...]) -> None:
    with pytest.raises(UsageError, match="1 given"):
        adapters_of(PACKAGE, ("one",), build(*noted))


@pytest.mark.parametrize("field", ["config", "weights"])
def test_another_adapter_is_refused(field: str) -> None:
    check_adapters(PACKAGE, build(HUB), {"adapters": [DIRECTORY]})
    with pytest.raises(CheckpointError, match="adapter 1 is another"):
        check_adapters(PACKAGE, build(HUB), {"adapters": [{**HUB, field: "sha256:c"}]})

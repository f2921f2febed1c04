"""Names of repositories on the hub."""

import pytest

from gemma4_compile.checkpoint.hub_id import is_hub_id


@pytest.mark.parametrize("name", ["google/gemma-4-E2B-it", "a/b", "a-b/c.d_e"])
def test_hub_ids(name: str) -> None:
    assert is_hub_id(name)


@pytest.mark.parametrize(
    "name", ["gemma", "a/b/c", "/a", "a/", "a b/c", "", "a/b\n", "./a", "../a"]
)
def test_no_hub_ids(name: str) -> None:
    assert not is_hub_id(name)

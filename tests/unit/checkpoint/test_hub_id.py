"""Names of repositories on the hub."""

import pytest
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils._validators import validate_repo_id

from gemma4_compile.checkpoint.hub_id import is_hub_id


@pytest.mark.parametrize(
    "name", ["google/gemma-4-E2B-it", "a/b", "a-b/c.d_e", f"a/{'b' * 96}", "_/_"]
)
def test_hub_ids(name: str) -> None:
    validate_repo_id(name)
    assert is_hub_id(name)


@pytest.mark.parametrize(
    "name", ["a/b--c", "a/b..c", "a/b.git", "a/b-", "a/b.", "a-/b", f"a/{'b' * 97}", "a/-b"]
)
def test_names_that_the_hub_does_not_take(name: str) -> None:
    with pytest.raises(HFValidationError):
        validate_repo_id(name)
    assert not is_hub_id(name)


@pytest.mark.parametrize(
    "name", ["gemma", "a/b/c", "/a", "a/", "a b/c", "", "a/b\n", "./a", "../a"]
)
def test_no_hub_ids(name: str) -> None:
    assert not is_hub_id(name)

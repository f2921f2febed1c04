"""Names of repositories on the hub."""

import pytest
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils._validators import validate_repo_id

from gemma4_compile.checkpoint.hub_id import hint_of_id, is_hub_id


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


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("https://huggingface.co/a/b", "page is a/b"),
        ("https://huggingface.co/a/b/tree/main?x=1", "page is a/b"),
        ("https://huggingface.co/a/b/blob/v1.0/config.json", "page is a/b --revision v1.0"),
        ("hf.co/a/b:Q4_0", "page is a/b"),
        ("hf://a/b", "page is a/b"),
        ("hf://models/a/b", "page is a/b"),
        ("https://huggingface.co/a/b.git", "page is a/b"),
        ("https://huggingface.co/a/b/commit/1f2e", "page is a/b --revision 1f2e"),
        ("https://huggingface.co/a/b/tree/refs%2Fpr%2F3", "page is a/b --revision refs/pr/3"),
        ("https://huggingface.co/datasets/a/b", "is of a data set"),
        ("a/b/tree/main", "page is a/b"),
        ("a/b:Q4_K_M", "hub id is a/b"),
        ("a/b/", "hub id is a/b"),
        ("a/b@v2", "a/b --revision v2"),
        ("a/b/checkpoint-5/", '--include "checkpoint-5/*"'),
        ("models--google--gemma-4-E2B-it", "google/gemma-4-E2B-it"),
        ("/data/hub/models--a--b", "is a/b"),
    ],
)
def test_what_is_nearly_a_hub_id_is_answered_with_it(name: str, hint: str) -> None:
    assert hint in str(hint_of_id(name))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "gemma4:e2b",
            "",
            "a",
            "./a/b/c",
            "/a/b/c",
            "C:\\models\\gemma",
            "https://example.org/a/b",
        ),
        *("~/models/gemma", "models--a", "s3://bucket/a/b", "ollama.com/library/b", "a/b/../c"),
    ],
)
def test_other_names_get_no_hub_id(name: str) -> None:
    assert hint_of_id(name) is None

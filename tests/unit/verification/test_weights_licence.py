"""Licences of weights: of the checkpoint's files, of its card, of the user; never of nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.verification.weights_licence import licence_of
from tests.fake_hub import COMMIT
from tests.hub_server import MODEL, serve

DIRECTORY = {"source": {"kind": "directory"}}
TINY = {"source": {"kind": "tiny"}}
APACHE_CARD = "---\nlicense: apache-2.0\nlicense_link: https://example.org\n---\n# Model\n"
GEMMA_CARD = "---\r\nlicense: gemma\r\n---\r\n"
TERMS = "Terms of use\nDo no harm.\n"


def folder(path: Path, files: Mapping[str, str]) -> str:
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        (path / name).write_bytes(text.encode())
    return str(path)


@pytest.mark.parametrize(
    ("files", "identifier", "part"),
    [
        ({"LICENSE": TERMS}, "other", "Do no harm."),
        ({"LICENSE.txt": TERMS, "README.md": GEMMA_CARD}, "gemma", "Do no harm."),
        ({"README.md": APACHE_CARD}, "apache-2.0", "Version 2.0, January 2004"),
        ({"LICENSE": "Apache License\nVersion 2.0, January 2004\n"}, "apache-2.0", "Apache"),
    ],
)
def test_a_checkpoint_says_what_it_is_under(
    tmp_path: Path, files: Mapping[str, str], identifier: str, part: str
) -> None:
    found = licence_of(DIRECTORY, folder(tmp_path / "model", files), None)
    assert found.identifier == identifier
    assert part in found.text


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "has no licence file"),
        ({"README.md": "license: apache-2.0\n"}, "has no licence file"),
        ({"README.md": GEMMA_CARD}, "names `gemma`, and its text is not there"),
        ({"LICENSE": " \n", "README.md": "# Model"}, "has no licence file"),
    ],
)
def test_a_checkpoint_that_does_not_say_is_refused(
    tmp_path: Path, files: Mapping[str, str], why: str
) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        licence_of(DIRECTORY, folder(tmp_path / "model", files), None)
    assert "--license-file" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        ({"source": {"kind": "tiny", "adapters": [{"kind": "hub"}]}}, "an adapter is merged"),
        (DIRECTORY, "somebody's machine"),
        ({}, "does not say"),
    ],
)
def test_what_cannot_be_known_is_asked_for(
    tmp_path: Path, build: Mapping[str, object], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        licence_of(build, None, None)
    (tmp_path / "terms").write_text(TERMS, "utf-8")
    assert licence_of(build, None, tmp_path / "terms").text == TERMS


def test_a_drafter_of_another_licence_is_asked_about(tmp_path: Path) -> None:
    model = folder(tmp_path / "model", {"LICENSE": TERMS})
    with pytest.raises(UsageError, match="drafter differ"):
        licence_of({**DIRECTORY, "drafter": {"kind": "tiny"}}, model, None)
    assert licence_of({**TINY, "drafter": {"kind": "tiny"}}, None, None).identifier == "apache-2.0"


def test_the_hub_is_asked_for_the_commit_that_was_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"source": {"kind": "hub", "model": MODEL, "revision": COMMIT}}
    with serve({"README.md": APACHE_CARD.encode(), "model.safetensors": 1 << 40}) as hub:
        hub.use(monkeypatch, tmp_path / "cache")
        assert licence_of(source, None, None).identifier == "apache-2.0"
        assert hub.sent == len(APACHE_CARD)
        hub.files["README.md"] = b"# nothing"
        hub.use(monkeypatch, tmp_path / "other")
        with pytest.raises(UsageError, match="has no licence file"):
            licence_of(source, None, None)


def test_an_empty_or_missing_licence_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name, why in (("empty", "is empty"), ("nowhere", "cannot read")):
        with pytest.raises(UsageError, match=why):
            licence_of(TINY, None, tmp_path / name)

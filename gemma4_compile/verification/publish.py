"""Uploads a finished package to the hub, in one commit, with a model card and its licence.

Large files go up first, and those that are there already are not sent again, so an interrupted
upload goes on. The commit comes last: before it the repository has nothing of the package. It is
made on the commit that was looked at, and refused where somebody has made another one since.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import huggingface_hub
from huggingface_hub import CommitOperationAdd, CommitOperationDelete

from gemma4_compile import abi
from gemma4_compile.checkpoint.hub_access import CLIENT, listed
from gemma4_compile.checkpoint.hub_errors import clear_errors
from gemma4_compile.checkpoint.hub_id import is_hub_id
from gemma4_compile.checkpoint.local_path import local_path
from gemma4_compile.checkpoint.sources import SHIPPED
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.package.artifacts import Provenance, read_artifact
from gemma4_compile.package.files import check_pieces
from gemma4_compile.progress import Reporter
from gemma4_compile.runtime.package.integrity import hash_files
from gemma4_compile.runtime.package.package import check_whole, read_provenance
from gemma4_compile.system.regular_files import MAX_JSON_BYTES
from gemma4_compile.verification.model_card import (
    LICENCE_FILE,
    MARK,
    PICTURE,
    Published,
    card_picture,
    model_card,
)
from gemma4_compile.verification.weights_licence import CARD, licence_of

OPTION = "--publish"
_ALSO = (abi.PROVENANCE_FILE, CARD, LICENCE_FILE)
_IGNORED = ".gitignore"


@dataclass(frozen=True)
class PublishRequest:
    """What is uploaded where.

    Attributes
    ----------
    model : the checkpoint's directory, if the package was just made of one
    public : make a repository that is not there yet for everybody, else for its owner alone
    """

    package: Path
    name: str
    licence_file: Path | None = None
    model: str | None = None
    public: bool = False


def check_name(name: str) -> None:
    """Raise UsageError for what is no id on the hub."""
    if not is_hub_id(name):
        raise UsageError(
            f"{OPTION}: expected an id on the hub, found `{name}`",
            hint="give owner/name, in letters, digits, `-`, `_` and `.`",
        )


def planned_build(request: CompileRequest) -> dict[str, object]:
    """What provenance will say of the sources of a package that is to be compiled."""
    return {
        "source": {**_planned(request.model, request.revision), "adapters": list(request.adapters)},
        **({} if request.drafter is None else {"drafter": _planned(request.drafter, None)}),
    }


def _planned(name: str, revision: str | None) -> dict[str, object]:
    if name in SHIPPED:
        return {"kind": name}
    if local_path(name).exists():
        return {"kind": "directory"}
    model, _, pinned = name.partition("@")
    return {"kind": "hub", "model": model, "revision": revision or pinned or "main"}


def publish(request: PublishRequest, reporter: Reporter) -> str:
    """Upload a package; returns the address of the commit.

    Raises
    ------
    ArtifactError
        If the package is not whole or damaged, or the repository holds something else.
    UsageError
        If nothing has the text of the weights' licence.
    CheckpointError
        If the hub refuses, or cannot be reached.
    """
    check_name(request.name)
    provenance = read_provenance(request.package)
    check_whole(request.package, provenance)
    licence = licence_of(provenance.build, request.model, request.licence_file)
    total = sum(nbytes for nbytes, _ in provenance.files.values())
    with reporter.progress("checking the package", total) as advance:
        advance(0)
        hash_files(request.package, provenance, advance)
    check_pieces(request.package, provenance)
    numerics = _numerics(request.package, provenance)
    published = Published(request.name, provenance, licence, numerics)
    card, picture = model_card(published), card_picture(published)
    with clear_errors(request.name, None, uploads=True):
        huggingface_hub.create_repo(request.name, private=not request.public, exist_ok=True)
        parent = huggingface_hub.model_info(request.name).sha
        there = {one.path: one.size for one in listed(request.name, parent)}
        old = _old_package(request.name, there, parent)
        _check_strangers(request.name, set(there), provenance, old)
        additions = [
            CommitOperationAdd(name, request.package / name)
            for name in sorted((*provenance.files, abi.PROVENANCE_FILE))
        ]
        additions.append(CommitOperationAdd(LICENCE_FILE, licence.text.encode()))
        if _may_write_card(request.name, there, parent):
            is_free = PICTURE not in there or CARD in there
            if picture is not None and is_free:
                additions.append(CommitOperationAdd(PICTURE, picture.encode()))
            elif picture is not None:  # somebody's own picture of that name
                card = model_card(replace(published, has_picture=False))
            additions.append(CommitOperationAdd(CARD, card.encode()))
        gone = (set(old.files) if old is not None else set()) & set(there) - set(provenance.files)
        deletions = [CommitOperationDelete(name) for name in sorted(gone)]
        reporter.stage(f"uploading {len(additions)} files to {request.name}")
        done = huggingface_hub.create_commit(
            request.name,
            operations=[*additions, *deletions],
            commit_message="Publish a package of gemma4-compile",
            parent_commit=parent,  # refused if what was looked at is not what is there any more
        )
    return str(done.commit_url)


def _numerics(package: Path, provenance: Provenance) -> dict[str, object] | None:
    if abi.NUMERICS_FILE not in provenance.files:
        return None
    return read_artifact(package / abi.NUMERICS_FILE)


def _old_package(name: str, there: Mapping[str, int], commit: str | None) -> Provenance | None:
    """What the repository's package lists, if it holds one."""
    if abi.PROVENANCE_FILE not in there:
        return None
    with contextlib.suppress(ArtifactError):
        file = _fetched(name, abi.PROVENANCE_FILE, there, commit)
        return Provenance.from_json(read_artifact(file))
    return None


def _fetched(name: str, file: str, there: Mapping[str, int], commit: str | None) -> Path:
    size = there[file]
    if size > MAX_JSON_BYTES:
        raise ArtifactError(
            f"`{file}` of `{name}`: expected at most {MAX_JSON_BYTES} bytes, found {size}",
            hint="give another repository; nothing was uploaded",
        )
    return Path(huggingface_hub.hf_hub_download(name, file, revision=commit, **CLIENT))


def _check_strangers(
    name: str, there: set[str], provenance: Provenance, old: Provenance | None
) -> None:
    """Refuse to overwrite what no package of ours lists, as a checkpoint's own tokenizer."""
    own = {*_ALSO, *(old.files if old is not None else ())}
    if _IGNORED in there:
        raise ArtifactError(
            f"`{name}` has a `{_IGNORED}`, by which the hub leaves files out",
            hint=f"remove it there, or give {OPTION} another repository; nothing was uploaded",
        )
    lost = sorted(there & set(provenance.files) - own)
    if lost:
        raise ArtifactError(
            f"`{name}` holds files that are of no package and would be overwritten: "
            f"{', '.join(lost[:4])}",
            hint=f"give {OPTION} a repository of its own; nothing was uploaded",
        )


def _may_write_card(name: str, there: Mapping[str, int], commit: str | None) -> bool:
    """Whether there is no card yet, or the one that an earlier run has written."""
    if CARD not in there:
        return True
    return MARK in _fetched(name, CARD, there, commit).read_text("utf-8", errors="replace")

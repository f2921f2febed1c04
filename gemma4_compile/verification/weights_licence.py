"""The licence that a package's weights are under: no weights are published without its text."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
from huggingface_hub import errors as hub_errors

from gemma4_compile.checkpoint.hub_access import CLIENT, ask
from gemma4_compile.checkpoint.hub_errors import clear_errors
from gemma4_compile.checkpoint.sources import SHIPPED
from gemma4_compile.errors import UsageError
from gemma4_compile.system.regular_files import MAX_JSON_BYTES, read_regular
from gemma4_compile.targets.linker.licences import apache_licence

LICENCE_NAMES = ("LICENSE", "LICENSE.md", "LICENSE.txt", "LICENCE", "COPYING")
CARD = "README.md"
APACHE, OTHER = "apache-2.0", "other"
_CARD_FIELD = re.compile(r"^(license|license_name|license_link):[ \t]*['\"]?([^'\"#\n]+)", re.M)
_FRONT = re.compile(r"\A\ufeff?---\r?\n(.*?)\r?\n---", re.S)
_APACHE_TEXT = re.compile(r"Apache License\s+Version 2\.0, January 2004")


@dataclass(frozen=True)
class WeightsLicence:
    """What the weights of a package are under.

    Attributes
    ----------
    identifier : as the hub's model cards have it
    text : of the licence, whole
    """

    identifier: str
    text: str


def licence_of(build: Mapping[str, object], model: str | None, file: Path | None) -> WeightsLicence:
    """The licence of the weights of a build: of a file, or of the checkpoint that it is from.

    Parameters
    ----------
    model : the checkpoint's directory, where the package was made of one and it is known
    file : what the user says that the licence is

    Raises
    ------
    UsageError
        If nothing has its text.
    """
    if file is not None:
        return _of_text(_read(file, "--license-file"))
    sources = [build.get("source"), build.get("drafter")]
    known = [one for one in sources if isinstance(one, Mapping)]
    if any(one.get("adapters") for one in known):
        raise _unknown("an adapter is merged into the weights, whose licence may be another one")
    found = [_of_source(one, model) for one in known]
    if len({one.identifier for one in found}) > 1:
        raise _unknown("the licences of the model and of its drafter differ")
    if not found:
        raise _unknown("the package does not say what it is made of")
    return found[0]


def _of_source(source: Mapping[str, object], model: str | None) -> WeightsLicence:
    kind = source.get("kind")
    if kind in SHIPPED:
        return WeightsLicence(APACHE, apache_licence())
    if kind == "hub":
        return _of_files(_hub_files(str(source.get("model")), str(source.get("revision"))))
    folder = Path(model) if model is not None else None
    if folder is None or not folder.is_dir():
        raise _unknown("the checkpoint was a directory or file of somebody's machine")
    names = (*LICENCE_NAMES, CARD)
    return _of_files({n: _read(folder / n, n) for n in names if (folder / n).is_file()})


def _hub_files(model: str, revision: str) -> dict[str, str]:
    """Licence and card of a checkpoint on the hub, those that it has."""
    found = {}
    with clear_errors(model, revision):
        for name in (*LICENCE_NAMES, CARD):
            with contextlib.suppress(hub_errors.EntryNotFoundError):
                size, _ = ask(model, name, revision)
                if size is None or size <= MAX_JSON_BYTES:
                    path = huggingface_hub.hf_hub_download(model, name, revision=revision, **CLIENT)
                    found[name] = _read(Path(path), name)
    return found


def _of_files(files: Mapping[str, str]) -> WeightsLicence:
    """By the licence's text, else by the licence that the card names, if its text is known here."""
    front = _FRONT.match(files.get(CARD, ""))
    card = dict(_CARD_FIELD.findall(front[1])) if front else {}
    named = card.get("license", "").strip().lower()
    text = next((files[name] for name in LICENCE_NAMES if files.get(name, "").strip()), None)
    if text is not None:
        licence = _of_text(text)
        known = licence.identifier if licence.identifier != OTHER else named or OTHER
        return WeightsLicence(known, text)
    if named == APACHE:
        return WeightsLicence(APACHE, apache_licence())
    if named:
        raise _unknown(f"the checkpoint's card names `{named[:40]}`, and its text is not there")
    raise _unknown("the checkpoint has no licence file, and its card names none")


def _of_text(text: str) -> WeightsLicence:
    if not text.strip():
        raise _unknown("the licence file is empty")
    return WeightsLicence(APACHE if _APACHE_TEXT.search(text) else OTHER, text)


def _read(path: Path, name: str) -> str:
    try:
        return read_regular(path, MAX_JSON_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        raise UsageError(
            f"{name}: cannot read `{path}`: {error.strerror}", hint="check the file"
        ) from error


def _unknown(why: str) -> UsageError:
    return UsageError(
        f"no weights are published without their licence: {why}",
        hint="give its text with --license-file FILE; nothing was uploaded",
    )

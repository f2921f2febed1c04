"""`models.json`: the list of packages that the page's start offers; here the one that is served."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from pathlib import Path

from gemma4_compile.device_kinds import is_of_pages
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.package.interface import embeds
from gemma4_compile.runtime.package.hub_snapshot import hub_package_of
from gemma4_compile.types import JsonObject

MODELS_FILE = "models.json"
_LONGEST_NAME = 80  # that the page takes, in the words of UTF-16 that JavaScript counts
_KNOWN = ("text", "image", "audio")


def model_list(package: Path, provenance: Provenance, address: str) -> JsonObject:
    """The content of the file for one package, served at `address`.

    Empty where it has no library for browsers, as in a partial build, or is an encoder's.
    """
    entry = model_entry(package, provenance, address)
    return {"models": [] if entry is None else [entry]}


def model_entry(package: Path, provenance: Provenance, address: str) -> JsonObject | None:
    """What the list says of a package; None where it has no library for browsers, or no replies.

    Its size is that of what one device fetches: of several libraries the main one.
    """
    main = next((one for one in provenance.libraries if is_of_pages(one.target)), None)
    if main is None or embeds(provenance.build):
        return None
    others = {one.file for one in provenance.libraries if one is not main}
    size = sum(nbytes for name, (nbytes, _) in provenance.files.items() if name not in others)
    found = provenance.build.get("modalities")
    takes = found if isinstance(found, list) else ["text"]
    return {
        "name": _line(_name_of(package, provenance)),
        "address": address,
        "size": size,
        "memory": main.memory_bytes,
        "modalities": [name for name in _KNOWN if name in takes],
    }


def names_of_page(names: Iterable[str]) -> list[str]:
    """Names of models as the page takes them, which shows no list with one that it does not.

    A line of up to 80 characters, and each another: see `examples/web/src/package/models.ts`.
    """
    found: list[str] = []
    for name in names:
        line = own = _line(name) or "model"
        count = 1
        while own in found:
            count += 1
            ending = f" ({count})"
            own = _line(line, _LONGEST_NAME - len(ending)) + ending
        found.append(own)
    return found


def _line(name: str, longest: int = _LONGEST_NAME) -> str:
    shown = (" " if unicodedata.category(one)[0] == "C" else one for one in name)
    line = " ".join("".join(shown).split())
    while len(line.encode("utf-16-le")) > 2 * longest:
        line = line[:-1]
    return line.rstrip()


_SHIPPED = ("tiny", "tiny-embedding")  # kinds of sources that are models' names, too


def _name_of(package: Path, provenance: Provenance) -> str:
    """As the page titles it: the package's own on the hub, its model's, or its folder's."""
    of_hub = hub_package_of(package)
    if of_hub:
        return of_hub.name
    source = provenance.build.get("source")
    source = source if isinstance(source, dict) else {}
    model = source.get("model")
    if isinstance(model, str) and model.rsplit("/", 1)[-1].strip():
        return model.rsplit("/", 1)[-1]
    kind = source.get("kind")
    return str(kind) if kind in _SHIPPED else package.resolve().name

"""`models.json`: the list of packages that the page's start offers; here the one that is served."""

from __future__ import annotations

from pathlib import Path

from gemma4_compile.device_kinds import is_of_pages
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.package.interface import embeds
from gemma4_compile.runtime.package.hub_snapshot import hub_package_of
from gemma4_compile.types import JsonObject

MODELS_FILE = "models.json"
_LONGEST_NAME = 80  # that the page takes
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
        "name": _name_of(package, provenance)[:_LONGEST_NAME],
        "address": address,
        "size": size,
        "memory": main.memory_bytes,
        "modalities": [name for name in _KNOWN if name in takes],
    }


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

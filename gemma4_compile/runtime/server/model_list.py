"""`models.json`: the list of packages that the page's start offers; here the one that is served."""

from __future__ import annotations

from pathlib import Path

from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.runtime.hub_snapshot import hub_package_of
from gemma4_compile.types import JsonObject

MODELS_FILE = "models.json"
_LONGEST_NAME = 80  # that the page takes
_KNOWN = ("text", "image", "audio")


def model_list(package: Path, provenance: Provenance, address: str) -> JsonObject:
    """The content of the file for one package, served at `address`.

    Its size is that of what one device fetches: of several libraries the main one.
    """
    if not provenance.libraries:  # a partial build
        return {"models": []}
    main = provenance.libraries[0]
    others = {library.file for library in provenance.libraries[1:]}
    size = sum(nbytes for name, (nbytes, _) in provenance.files.items() if name not in others)
    of_hub = hub_package_of(package)
    found = provenance.build.get("modalities")
    takes = found if isinstance(found, list) else ["text"]
    return {
        "models": [
            {
                "name": (of_hub.name if of_hub else package.resolve().name)[:_LONGEST_NAME],
                "address": address,
                "size": size,
                "memory": main.memory_bytes,
                "modalities": [name for name in _KNOWN if name in takes],
            }
        ]
    }

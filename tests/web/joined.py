"""Packages of several libraries, joined from packages that were compiled one by one."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemma4_compile import abi
from tests.web.dawn import library_of


def join(packages: Mapping[str, Path], folder: Path) -> Path:
    """One package of several that were compiled one by one, over the first one's shards."""
    first, *_ = packages.values()
    shutil.copytree(first, folder)
    (folder / library_of(first)).unlink()
    provenance = json.loads((first / abi.PROVENANCE_FILE).read_text())
    del provenance["files"][library_of(first)]
    provenance["libraries"] = []
    for name, package in packages.items():
        file = f"model-{name}.wasm"
        data = (package / library_of(package)).read_bytes()
        build = json.loads((package / abi.PROVENANCE_FILE).read_text())["build"]
        (folder / file).write_bytes(data)
        provenance["files"][file] = described(data)
        provenance["libraries"].append(
            {
                "file": file,
                "name": name,
                "target": "webgpu",
                "device": "webgpu",
                "limits": build["limits"],
                "activations": build["activations"],
                "float16": "native" if "f16" in build["recipe"] else None,
                "requirements": {"language_features": [], **build["requirements"]},
            }
        )
    provenance["library"] = provenance["libraries"][0]["file"]
    (folder / abi.PROVENANCE_FILE).write_text(json.dumps(provenance))
    return folder


def described(data: bytes) -> dict[str, Any]:
    return {"nbytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

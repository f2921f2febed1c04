"""A folder for a host of static files: the page, packages beside it, and the list to choose from.

The folder's content may be uploaded as it is, below any address.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError, Gemma4CompileError, UsageError
from gemma4_compile.runtime.package.package import check_whole, read_provenance
from gemma4_compile.runtime.server.model_list import MODELS_FILE, model_entry, names_of_page
from gemma4_compile.runtime.server.pages import find_page

FOLDER_NAME = re.compile(r"\w[\w.-]{0,254}", re.ASCII)


def write_site(site: Path, page: Path, packages: Sequence[Path]) -> None:
    """Write the folder, which must not be there.

    Raises
    ------
    UsageError
        If there is something at `site`, or two packages have folders of one name.
    ArtifactError
        If one of the packages is none, or none for browsers.
    """
    if site.exists():
        raise UsageError(f"`{site}` is there", hint="remove it, or give another folder")
    folders: dict[str, Path] = {}
    entries = []
    for package in packages:
        provenance = read_provenance(package)
        check_whole(package, provenance)
        name = package.resolve().name
        if not FOLDER_NAME.fullmatch(name) or name in folders or (page / name).exists():
            raise UsageError(
                f"the package `{package}` needs a folder of another name",
                hint="letters, digits, `-`, `_` and `.`, no other package's and none of the page's",
            )
        entry = model_entry(package, provenance, f"./{name}/")
        if entry is None:
            raise ArtifactError(
                f"the package `{package}` has no library for browsers",
                hint="compile it with --target webgpu",
            )
        folders[name] = package
        entries.append(entry)
    names = Counter(entry["name"] for entry in entries)
    own = [  # of several packages of one model each has its folder's
        folder if names[entry["name"]] > 1 else entry["name"]
        for folder, entry in zip(folders, entries, strict=True)
    ]
    for entry, name in zip(entries, names_of_page(own), strict=True):
        entry["name"] = name
    shutil.copytree(page, site)
    for name, package in folders.items():
        copy_package(package, site / name)
    models = json.dumps({"models": entries}, indent=2, ensure_ascii=False)
    (site / MODELS_FILE).write_text(f"{models}\n", "utf-8")


def copy_package(package: Path, target: Path) -> None:
    """Copy what browsers need of a package: no native libraries, which need not be there."""
    provenance = read_provenance(package)
    native = {one.file for one in provenance.libraries if one.target != "webgpu"}
    target.mkdir()
    for name in (abi.PROVENANCE_FILE, *provenance.files):
        if name not in native:
            shutil.copyfile(package / name, target / name)


def main() -> None:
    """Read the command line and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path, help="the folder to write")
    parser.add_argument("packages", type=Path, nargs="+", help="folders of compiled packages")
    options = parser.parse_args()
    page = find_page()
    if page is None:
        raise UsageError(
            "the page is not built", hint="npm ci && npm run build in examples/web builds it"
        )
    write_site(options.site, page, options.packages)
    print(f"{options.site}: the page and {len(options.packages)} package(s)", flush=True)


if __name__ == "__main__":
    try:
        main()
    except Gemma4CompileError as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        sys.exit(1)

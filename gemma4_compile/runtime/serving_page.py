"""What of a package a server gives to pages, and which page it serves."""

from __future__ import annotations

from pathlib import Path

from gemma4_compile.device_kinds import is_of_pages
from gemma4_compile.options.process import warn
from gemma4_compile.options.serve import API_KEY_VARIABLE, BUILD_PAGE, ServeOptions
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.runtime.listening import WAY_WITHOUT_KEY
from gemma4_compile.runtime.package.choice import candidates, for_pages, is_for_browsers
from gemma4_compile.runtime.package.drafter_files import without_drafter
from gemma4_compile.runtime.package.hub_snapshot import forgetting_damage
from gemma4_compile.runtime.package.integrity import Check, check_sizes
from gemma4_compile.runtime.server.pages import PACKAGE_PATH, find_page
from gemma4_compile.runtime.terminal.console import Console


def served(options: ServeOptions, directory: Path, provenance: Provenance) -> tuple[bool, bool]:
    """Whether the package is served to pages, and whether it answers here.

    One with libraries for both does both, but for `--device webgpu`, or where none of the native
    ones runs.
    """
    named = options.device
    pages = [one for one in provenance.libraries if is_for_browsers(one)]
    of_pages = [one.name for one in pages]
    if pages and named is not None and (is_of_pages(named) or named in of_pages):
        return True, False
    if not pages or named is not None:
        return bool(pages), True
    lacking = []
    for one in candidates(directory, provenance):
        if one.device is not None:
            return True, True
        lacking.append(f"`{one.library.name}` does not run here, so there is no API: {one.lacks}")
    for notice in lacking:
        Console().note(notice)
    return True, False


def check_files(options: ServeOptions, directory: Path, provenance: Provenance) -> None:
    """ArtifactError where a file that pages load has another size; they hash what they load."""
    if Check(options.check) is not Check.OFF:
        wanted = provenance if options.draft != 0 else without_drafter(provenance)
        with forgetting_damage(directory):
            check_sizes(directory, for_pages(wanted))


def chosen_page(
    options: ServeOptions, key: str | None, guarded: str, path: str = PACKAGE_PATH
) -> Path | None:
    """The page for packages for browsers; tells where there is none, and what no key guards."""
    if key is not None:
        warn(
            f"{API_KEY_VARIABLE} guards {guarded} here: whoever reaches this server gets the "
            "package, for a page's requests for its files bring no key",
            f"{WAY_WITHOUT_KEY}, or listen on 127.0.0.1",
        )
    page = options.page or find_page()
    if page is None:
        warn(
            f"no built page here, so only the package is served, at {path}",
            f"{BUILD_PAGE}, then --page its dist",
        )
    return page

"""Folders of files beside the API: the chat page and the package that it loads."""

from __future__ import annotations

from pathlib import Path

from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles


def folder_routes(page: Path | None, package: Path | None) -> list[BaseRoute]:
    """Routes of the folders; they stand behind the API's, and the page takes what is left.

    Parameters
    ----------
    page : a built chat page, served at `/`, or None
    package : a package, served at `/package/`, or None
    """
    routes: list[BaseRoute] = []
    if package is not None:
        routes.append(Mount("/package", StaticFiles(directory=package)))
    if page is not None:
        routes.append(Mount("/", StaticFiles(directory=page, html=True)))
    return routes

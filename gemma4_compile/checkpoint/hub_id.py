"""Names of repositories on the hub."""

from __future__ import annotations

import re
from urllib.parse import unquote

_HUB_ID = re.compile(r"\w[\w.\-]*\b/\b\w[\w.\-]{0,95}\b", re.ASCII)
_PAGE = re.compile(r"(?:(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://)(?:models/)?(.+)")
_CACHED = re.compile(r"(?:.*[/\\])?models--([\w.\-]+?)--([\w.\-]+)[/\\]?", re.ASCII)
_OF_REVISION = re.compile(r"/(?:tree|blob|resolve|commit)/([\w.\-%]+)")
_OTHERS = {"datasets": "a data set", "spaces": "a space", "collections": "a collection"}


def is_hub_id(model: str) -> bool:
    """Return whether a name has the form `organisation/model`, as the hub wants it."""
    if _HUB_ID.fullmatch(model) is None:
        return False
    return "--" not in model and ".." not in model and not model.endswith(".git")


def hint_of_id(model: str) -> str | None:
    """What to give in the place of what is nearly a hub id; None if it says nothing.

    A page of the hub, a folder of its cache, an id with a revision, a slash or a folder behind it.
    """
    cached = _CACHED.fullmatch(model)
    if cached is not None and is_hub_id(f"{cached[1]}/{cached[2]}"):
        return f"the hub id of that folder of the cache is {cached[1]}/{cached[2]}"
    page = _PAGE.fullmatch(model.partition("?")[0])
    rest = model if page is None else page[1]
    name, _, revision = rest.partition("@")
    owner, _, last = name.partition("/")
    last, slash, folder = last.partition("/")
    if page is not None and owner in _OTHERS:
        return f"that page is of {_OTHERS[owner]}: give the hub id of a model"
    last, colon, _ = last.removesuffix(".git").partition(":")
    hub_id = f"{owner}/{last}"
    if not is_hub_id(hub_id):
        return None
    of = _OF_REVISION.match(slash + folder)
    if page is not None or of is not None:
        found = "main" if of is None else unquote(of[1])
        at = "" if found == "main" else f" --revision {found}"
        return f"the hub id of that page is {hub_id}{at}"
    if owner.endswith((".com", ".co", ".org", ".net", ".ai", ".cn")) or ".." in folder.split("/"):
        return None  # another site's page, or a path
    if revision and not folder:
        return f"give the revision as an option: {hub_id} --revision {revision}"
    if folder.strip("/"):
        folder = folder.strip("/")
        get = f'hf download {hub_id} --include "{folder}/*" --local-dir FOLDER'
        return f"check the directory's name; for a folder on the hub: `{get}`, then FOLDER/{folder}"
    return f"the hub id is {hub_id}" if slash or colon or model.endswith(".git") else None

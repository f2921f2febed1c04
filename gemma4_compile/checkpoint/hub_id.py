"""Names of repositories on the hub."""

from __future__ import annotations

import re

_HUB_ID = re.compile(r"\w[\w.\-]*\b/\b\w[\w.\-]{0,95}\b", re.ASCII)


_PAGE = re.compile(r"(?:(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://)(?:models/)?(.+)")
_CACHED = re.compile(r"(?:.*[/\\])?models--([\w.\-]+?)--([\w.\-]+)[/\\]?", re.ASCII)
_OF_REVISION = re.compile(r"/(?:tree|blob|resolve)/([\w.\-]+)")


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
    hub_id = f"{owner}/{last.partition(':')[0]}"
    if not is_hub_id(hub_id):
        return None
    if page is not None:
        of = _OF_REVISION.match(slash + folder)
        at = f" --revision {of[1]}" if of is not None and of[1] != "main" else ""
        return f"the hub id of that page is {hub_id}{at}"
    if revision and not folder:
        return f"give the revision as an option: {hub_id} --revision {revision}"
    if folder.strip("/"):
        folder = folder.strip("/")
        get = f'hf download {hub_id} --include "{folder}/*" --local-dir FOLDER'
        return f"check the directory's name; for a folder on the hub: `{get}`, then FOLDER/{folder}"
    return f"the hub id is {hub_id}" if slash else None

"""Names of repositories on the hub."""

from __future__ import annotations

import re

_HUB_ID = re.compile(r"\w[\w.\-]*\b/\b\w[\w.\-]{0,95}\b", re.ASCII)


def is_hub_id(model: str) -> bool:
    """Return whether a name has the form `organisation/model`, as the hub wants it."""
    if _HUB_ID.fullmatch(model) is None:
        return False
    return "--" not in model and ".." not in model and not model.endswith(".git")

"""Names of repositories on the hub."""

from __future__ import annotations

import re

_HUB_ID = re.compile(r"\w[\w.\-]*/\w[\w.\-]*", re.ASCII)


def is_hub_id(model: str) -> bool:
    """Return whether a name has the form `organisation/model`."""
    return _HUB_ID.fullmatch(model) is not None

"""What a reference within a JSON schema points to: `$ref`, a JSON pointer (RFC 6901)."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

_MOST_DIGITS = 9  # of a place in a list


def referred(root: object, reference: object) -> object:
    """The part of a schema that a reference such as `#/$defs/Guest` points to.

    Raises
    ------
    LookupError
        If it is no reference to a part of this schema, or that is not there.
    """
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise LookupError("only parts of the schema can be meant")
    found = root
    for part in filter(None, reference[1:].split("/")):
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and len(name) <= _MOST_DIGITS:
            found = found[int(name)]
        else:
            raise LookupError(name)
    return found

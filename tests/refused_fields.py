"""Fields that change a reply and are not served, of each protocol's requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.asks import Ask

Places = Mapping[str, tuple[Callable[..., Any], Mapping[str, Ask]]]
"""By a place of a request: what reads one with further fields there, and those to refuse."""


def fields_of(places: Places) -> list[tuple[str, str]]:
    """Each place with each of its fields."""
    return [(place, name) for place, (_, table) in places.items() for name in table]


def check_refused(places: Places, place: str, name: str) -> None:
    """A field is refused by its name and with its reason, unless it asks for nothing."""
    ask, table = places[place]
    with pytest.raises(ApiError) as caught:
        ask(**{name: "something else"})
    assert caught.value.code == "unsupported_value"
    assert table[name].why in caught.value.message
    assert str(caught.value.param).endswith(name)
    for neutral in (None, *table[name].neutral):
        ask(**{name: neutral})

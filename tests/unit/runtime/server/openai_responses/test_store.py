"""Responses are kept for who asked, as many as there is room for."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.openai_responses.store import ResponseStore, written_items

ITEMS = st.lists(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    ),
    max_size=4,
)


def response(name: str, **fields: Any) -> dict[str, object]:
    return {"id": name, **fields}


def kept(store: ResponseStore, *names: str) -> list[str]:
    found = []
    for name in names:
        try:
            found.append(str(store.find(name, "k").response["id"]))
        except ApiError:
            continue
    return found


def test_a_response_is_its_tenant_s_alone() -> None:
    store = ResponseStore()
    store.keep(response("a"), [1, 2], "k")
    assert store.find("a", "k").items == (1, 2)
    for name, tenant in (("a", "other"), ("b", "k")):
        with pytest.raises(ApiError) as caught:
            store.find(name, tenant, "previous_response_id")
        assert (caught.value.status, caught.value.param) == (404, "previous_response_id")
        with pytest.raises(ApiError):
            store.forget(name, tenant)
    store.forget("a", "k")
    assert not kept(store, "a")


def test_what_is_kept_takes_the_memory_of_its_bytes() -> None:
    store = ResponseStore(most_bytes=1 << 20)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for name in "abcdefgh":  # each an eighth of the room, and 30 times that as lists of Python
            items = json.loads("[" + ",".join(["{}"] * 40_000) + "]")
            store.keep(response(name), items, "k")
        del items
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert store.find("h", "k").items == ({},) * 40_000
    assert held < 1.25 * (1 << 20)


@settings(max_examples=40)
@given(ITEMS)
def test_what_is_kept_comes_back(items: list[Any]) -> None:
    store = ResponseStore()
    store.keep(response("a", values=items), items, "k")
    found = store.find("a", "k")
    assert (found.response, found.items) == ({"id": "a", "values": items}, tuple(items))


@settings(max_examples=40)
@given(ITEMS, ITEMS)
def test_items_that_were_written_before_come_first(before: list[Any], items: list[Any]) -> None:
    store = ResponseStore()
    store.keep(response("a"), items, "k", written_items(before))
    assert store.find("a", "k").items == (*before, *items)


def test_items_are_found_as_long_as_their_responses_and_by_their_tenant() -> None:
    store = ResponseStore(most=2)
    for name in "abc":
        items = [{"id": f"fc_{name}", "type": "function_call"}, {"type": "x"}]
        store.keep(response(name, output=items), [], "k")
    assert store.find_item("fc_c", "k", "p") == {"id": "fc_c", "type": "function_call"}
    store.forget("b", "k")
    for name, tenant in (("fc_a", "k"), ("fc_b", "k"), ("fc_c", "other"), ("c", "k")):
        with pytest.raises(ApiError) as caught:
            store.find_item(name, tenant, "input[0].id")
        assert (caught.value.status, caught.value.param) == (404, "input[0].id")
    store.forget("c", "k")
    store.keep(response("large", output=[{"id": "m", "text": "x"}]), [], "k")
    assert store.find_item("m", "k", "p") == {"id": "m", "text": "x"}


def test_who_was_not_asked_for_longest_leaves_first() -> None:
    store = ResponseStore(most=2)
    store.keep(response("a"), [], "k")
    store.keep(response("b"), [], "k")
    store.find("a", "k")
    store.keep(response("c"), [], "k")
    assert kept(store, "a", "b", "c") == ["a", "c"]


def test_bytes_are_bounded_and_come_back() -> None:
    store = ResponseStore(most_bytes=1000)
    store.keep(response("large", text="x" * 2000), [], "k")
    assert not kept(store, "large")
    for _ in range(50):
        store.keep(response("a", text="x" * 600), [], "k")
        store.forget("a", "k")
    store.keep(response("b", text="x" * 600), [], "k")
    store.keep(response("c", text="x" * 600), [], "k")
    assert kept(store, "b", "c") == ["c"]

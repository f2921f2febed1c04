"""What a stored response was made of, item by item, as OpenAI's clients list it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import NoReturn

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.types import JsonObject

_MOST, _USUAL = 100, 20  # items of a page
_ORDERS = ("asc", "desc")
_PREFIXES = {
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "function_call": "fc",
    "function_call_output": "fco",
    "message": "msg",
    "reasoning": "rs",
}
_WITHOUT_STATUS = ("reasoning",)
_IN_TEXT = ("text", "input_text", "output_text")


def with_ids(items: Sequence[object]) -> list[object]:
    """The items, those that came without an id with one; they keep it as the conversation goes on.

    Only items that were read already are taken.
    """
    return [_with_id(item) if isinstance(item, Mapping) else item for item in items]


def page_of(items: Sequence[object], query: Mapping[str, str]) -> JsonObject:
    """A page of the list.

    Parameters
    ----------
    items : all of them, the oldest first, with ids
    query : `order` (the newest first by default), `limit`, `after` and `before` of the request

    Raises
    ------
    ApiError
        400 for a value that says nothing here.
    """
    order, limit = query.get("order", "desc"), _limit(query.get("limit", str(_USUAL)))
    if order not in _ORDERS:
        _refuse("order", f"expected asc or desc, found {order[:40]!r}")
    shown = [_shown(item) for item in items if isinstance(item, Mapping)]
    if order == "desc":
        shown.reverse()
    if after := query.get("after"):
        shown = shown[_place(shown, "after", after) + 1 :]
    if before := query.get("before"):
        shown = shown[: _place(shown, "before", before)]
    from_end = "before" in query and "after" not in query  # the page that ends there
    page = shown[-limit:] if from_end else shown[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(shown) > len(page),
    }


def _with_id(item: Mapping[str, object]) -> Mapping[str, object]:
    if item.get("id"):
        return item
    kind = str(item.get("type") or "message")
    return {**item, "id": f"{_PREFIXES.get(kind, 'item')}_{uuid.uuid4().hex}"}


def _limit(value: str) -> int:
    if value.isascii() and value.isdecimal() and len(value) < 4 and 1 <= int(value) <= _MOST:
        return int(value)
    _refuse("limit", f"expected 1 to {_MOST}, found {value[:40]!r}")


def _place(items: Sequence[JsonObject], name: str, wanted: str) -> int:
    for index, item in enumerate(items):
        if item["id"] == wanted:
            return index
    _refuse(name, f"there is no item `{wanted[:100]}` among those of this response")


def _refuse(name: str, why: str) -> NoReturn:
    raise ApiError(400, f"`{name}`: {why}", param=name)


def _shown(item: Mapping[str, object]) -> JsonObject:
    """An item with the fields that typed clients count on, however it was sent."""
    kind = str(item.get("type") or "message")
    shown: JsonObject = {**item, "type": kind}
    if kind not in _WITHOUT_STATUS:
        shown["status"] = item.get("status") or "completed"
    if kind == "message":
        is_model = item.get("role") == "assistant"
        shown["content"] = _parts(item.get("content"), "output_text" if is_model else "input_text")
    elif kind.endswith("call_output") and isinstance(item.get("output"), list):
        shown["output"] = _parts(item["output"], "input_text")
    elif kind == "function_call" and not isinstance(item.get("arguments"), str):
        shown["arguments"] = json.dumps(item.get("arguments") or {}, ensure_ascii=False)
    elif kind == "reasoning":
        shown["summary"] = item.get("summary") or []
    return shown


def _parts(content: object, kind: str) -> list[object]:
    if isinstance(content, list):
        return [_part(part, kind) if isinstance(part, Mapping) else part for part in content]
    return [_part({"text": content}, kind)]


def _part(part: Mapping[str, object], kind: str) -> JsonObject:
    given = part.get("type", kind)
    if given in _IN_TEXT:
        more = {"annotations": part.get("annotations") or []} if kind == "output_text" else {}
        return {**part, "type": kind, **more}
    if given != "input_image":
        return {**part}
    address = part.get("image_url")
    if isinstance(address, Mapping):  # as chat completions have it
        return {"detail": "auto", **part, "image_url": address.get("url")}
    return {"detail": "auto", **part}

"""Responses that a client may ask for again, or go on from: in memory, the oldest leave first."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.json_decoders import make_decoder
from gemma4_compile.types import JsonObject

MAX_RESPONSES = 512
MAX_BYTES = 64 << 20
NO_ITEMS = b"[]"


@dataclass(frozen=True)
class StoredResponse:
    """A response that has ended, as JSON: values of Python take up to 30 times the memory.

    Attributes
    ----------
    tenant : the key that the request brought
    outputs : items of the response, by their ids
    """

    tenant: str
    outputs: Mapping[str, bytes]
    _response: bytes
    _items: bytes

    @classmethod
    def of(
        cls, response: JsonObject, items: Sequence[object], tenant: str, before: bytes
    ) -> StoredResponse:
        """Write both out; `before` are items that were written out before."""
        output = response.get("output")
        own = [item for item in output if "id" in item] if isinstance(output, list) else []
        outputs = {str(item["id"]): _written(item) for item in own}
        return cls(tenant, outputs, _written(response), _joined(before, written_items(items)))

    @property
    def size(self) -> int:
        """Bytes of it."""
        own = sum(len(item) for item in self.outputs.values())
        return len(self._response) + len(self._items) + own

    @property
    def response(self) -> JsonObject:
        """The response as it was answered."""
        found = _read(self._response)
        assert isinstance(found, dict), "written above"
        return found

    @property
    def items(self) -> tuple[object, ...]:
        """Items of the whole conversation, those of the response last."""
        found = _read(self._items)
        assert isinstance(found, list), "written above"
        return tuple(found)

    @property
    def input_items(self) -> tuple[object, ...]:
        """Items of the conversation before the response."""
        output = self.response["output"]
        assert isinstance(output, list), "of `ResponseAnswer`"
        return self.items[: len(self.items) - len(output)]


def written_items(items: Sequence[object]) -> bytes:
    """Items as they are kept; each by itself, so that other threads run between them."""
    return b"[" + b",".join(map(_written, items)) + b"]"


def _joined(first: bytes, second: bytes) -> bytes:
    """Two lists that were written out, as one."""
    inner = [one for one in (first[1:-1], second[1:-1]) if one]
    return b"[" + b",".join(inner) + b"]"


def _written(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _read(written: bytes) -> object:
    return make_decoder(len(written)).decode(written.decode())


class ResponseStore:
    """Bounded in number and in bytes; no tenant sees another's. For all threads."""

    def __init__(self, most: int = MAX_RESPONSES, most_bytes: int = MAX_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()
        self._bytes = 0
        self._lock = threading.RLock()
        self._response_of: dict[str, str] = {}  # ids of items

    def keep(
        self, response: JsonObject, items: Sequence[object], tenant: str, before: bytes = NO_ITEMS
    ) -> None:
        """Keep one; where it alone is too large, it is not kept.

        Parameters
        ----------
        before : those of its conversation before `items`, as of `written_items`
        """
        stored = StoredResponse.of(response, items, tenant, before)
        if stored.size > self._most_bytes:
            return
        name = str(response["id"])
        with self._lock:
            self._kept[name] = stored
            self._bytes += stored.size
            self._response_of.update(dict.fromkeys(stored.outputs, name))
            while self._bytes > self._most_bytes or len(self._kept) > self._most:
                self._remove(next(iter(self._kept)))

    def find(self, name: str, tenant: str, param: str | None = None) -> StoredResponse:
        """The response of this id; ApiError 404 if there is none of this tenant's."""
        with self._lock:
            found = self._kept.get(name)
            if found is not None and found.tenant == tenant:
                self._kept.move_to_end(name)
        if found is None or found.tenant != tenant:
            raise ApiError(
                404,
                f"there is no response `{name[:100]}`: it was not stored, or others have taken "
                "its place",
                param=param,
                code="response_not_found",
            )
        return found

    def forget(self, name: str, tenant: str) -> None:
        """Forget one; ApiError 404 as of `find`."""
        with self._lock:
            self.find(name, tenant)
            self._remove(name)

    def find_item(self, name: str, tenant: str, param: str) -> object:
        """The item of this id among those of responses; ApiError 404 as of `find`."""
        with self._lock:
            holder = self._response_of.get(name)
            found = None if holder is None else self._kept[holder]
        if holder is None or found is None or found.tenant != tenant:
            raise ApiError(
                404,
                f"there is no item `{name[:100]}`: its response was not stored, or others have "
                "taken its place; send the item itself (`store: false`)",
                param=param,
                code="item_not_found",
            )
        return json.loads(self.find(holder, tenant).outputs[name])

    def _remove(self, name: str) -> None:
        gone = self._kept.pop(name)
        self._bytes -= gone.size
        for item in gone.outputs:
            del self._response_of[item]

"""Bodies that came packed, by gzip or deflate: unpacked piece by piece, within a limit."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator

from gemma4_compile.runtime.server.api_error import ApiError

_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
_NAMES = {"deflate": _ZLIB, "gzip": _GZIP, "x-gzip": _GZIP}
_PLAIN = ("", "identity")
_SLICE_BYTES = 1 << 14  # no more of a bomb is in memory than these


def unpacked(pieces: AsyncIterator[bytes], coding: str, most: int) -> AsyncIterator[bytes]:
    """The pieces of a body as they were before a `Content-Encoding`.

    Beyond `most` bytes nothing is unpacked: the rest comes as it is, for who counts on to see.

    Raises
    ------
    ApiError
        415 for another coding than gzip and deflate; 400, at the end of the body, for one that is
        damaged, was cut or goes on behind its end.
    """
    name = coding.strip().lower()
    if name in _PLAIN:
        return pieces
    if name not in _NAMES:
        why = "expected gzip, deflate, or a body as it is, without Content-Encoding"
        raise ApiError(415, f"the body is packed by `{name[:40]}`; {why}")
    return _Unpacking(name, most).over(pieces)


class _Unpacking:
    def __init__(self, name: str, most: int) -> None:
        self._name, self._left = name, most
        self._form = zlib.decompressobj(_NAMES[name])
        self._has_begun = False
        self._wrong: str | None = None

    async def over(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            if self._wrong is not None or self._left < 0:
                yield piece  # is read to its end, so that who writes it hears why not
                continue
            for part in self._opened(piece):
                yield part
                await asyncio.sleep(0)  # others have their turn
        if self._left < 0:
            return
        if self._wrong is None and not self._form.eof:
            self._wrong = "it ends before its last block"
        if self._wrong is not None:
            why = f"the body cannot be unpacked as `{self._name}`: {self._wrong}"
            raise ApiError(400, why, code="invalid_body")

    def _opened(self, piece: bytes) -> Iterator[bytes]:
        if piece and not self._has_begun:
            self._has_begun = True
            # Some send deflate's blocks alone; none of them begins as zlib's head does.
            if _NAMES[self._name] == _ZLIB and piece[0] & 0x0F != zlib.DEFLATED:
                self._form = zlib.decompressobj(_RAW)
        while self._left >= 0 and self._wrong is None:
            if self._form.eof:
                self._wrong = "there is more behind its end" if piece else None
                return
            try:
                part = self._form.decompress(piece, _SLICE_BYTES)
            except zlib.error as error:
                self._wrong = str(error)
                return
            piece = self._form.unused_data if self._form.eof else self._form.unconsumed_tail
            self._left -= len(part)
            if part:
                yield part
            if not piece and len(part) < _SLICE_BYTES:
                return

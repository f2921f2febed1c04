"""Hashes of a file's pieces, beside that of the whole, for who checks a file as it comes.

A browser's own SHA-256 wants all bytes at once, and a shard has 32 MiB and more.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from gemma4_compile import abi
from gemma4_compile.package.fields import Fields
from gemma4_compile.types import JsonObject

PIECE_BYTES = 8 << 20
# Of others' packages: a list is short, and a piece small.
LEAST_PIECE_BYTES, MOST_PIECE_BYTES = 1 << 20, 32 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Pieces:
    """Hashes of the pieces of a file, in its order.

    Attributes
    ----------
    nbytes : size of each; the last one has what is left
    sha256 : of each, in hexadecimal digits
    """

    nbytes: int
    sha256: tuple[str, ...]

    def to_json(self) -> JsonObject:
        """The field `pieces` of a file in `provenance.json`."""
        return {"nbytes": self.nbytes, "sha256": list(self.sha256)}

    @classmethod
    def from_json(cls, value: object, name: str, file_bytes: int) -> Pieces:
        """Read the field of a file; ArtifactError names one that does not fit the file's size."""
        what = f"files.{name}.pieces"
        read = Fields(value, abi.PROVENANCE_FILE, what)
        nbytes, digests = read.get("nbytes", int), read.get("sha256", list)
        fits = LEAST_PIECE_BYTES <= nbytes <= MOST_PIECE_BYTES
        if not fits or len(digests) != -(-file_bytes // nbytes):
            raise read.damaged(what)
        if not all(isinstance(one, str) and _SHA256.fullmatch(one) for one in digests):
            raise read.damaged(what)
        return cls(nbytes, tuple(digests))


class Listed(NamedTuple):
    """What `provenance.json` lists of a file beside its size."""

    sha256: str
    pieces: Pieces | None = None


@dataclass
class PieceHashes:
    """Hashes the pieces of a file whose bytes come in blocks of any size.

    Attributes
    ----------
    nbytes : of a piece
    """

    nbytes: int = PIECE_BYTES
    _digests: list[str] = field(default_factory=list)
    _open: hashlib._Hash = field(default_factory=hashlib.sha256)
    _open_bytes: int = 0

    def update(self, block: bytes) -> None:
        """Take the bytes that come next."""
        rest = memoryview(block)
        while rest:
            taken = rest[: self.nbytes - self._open_bytes]
            self._open.update(taken)
            self._open_bytes += len(taken)
            rest = rest[len(taken) :]
            if self._open_bytes == self.nbytes:
                self._close()

    def _close(self) -> None:
        self._digests.append(self._open.hexdigest())
        self._open, self._open_bytes = hashlib.sha256(), 0

    def end(self) -> Pieces:
        """The pieces of what has come."""
        if self._open_bytes:
            self._close()
        return Pieces(self.nbytes, tuple(self._digests))

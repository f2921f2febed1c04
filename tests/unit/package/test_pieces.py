"""Hashes of a file's pieces: of blocks as they come, and as provenance lists them."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.package.pieces import PieceHashes, Pieces

MIB = 1 << 20
DIGEST = "0" * 64


@pytest.mark.parametrize(
    "pieces",
    [
        [DIGEST],
        {"sha256": [DIGEST] * 3},
        {"nbytes": MIB},
        {"nbytes": MIB, "sha256": []},
        {"nbytes": MIB, "sha256": [DIGEST] * 2},
        {"nbytes": MIB, "sha256": [DIGEST] * 4},
        {"nbytes": MIB, "sha256": [DIGEST, DIGEST, "0" * 63]},
        {"nbytes": MIB, "sha256": [DIGEST, DIGEST, 3]},
        {"nbytes": float(MIB), "sha256": [DIGEST] * 3},
        {"nbytes": 0, "sha256": []},
        {"nbytes": -MIB, "sha256": []},
        {"nbytes": 8, "sha256": [DIGEST] * (2 * MIB // 8 + 1)},
        {"nbytes": 1 << 30, "sha256": [DIGEST]},
    ],
)
def test_pieces_that_do_not_fit_their_file_are_damage(pieces: object) -> None:
    entry = {"nbytes": 2 * MIB + 1, "sha256": DIGEST}
    right = {**entry, "pieces": {"nbytes": MIB, "sha256": [DIGEST] * 3}}
    values = Provenance(None, {}, {}).to_json()
    assert Provenance.from_json({**values, "files": {"x.bin": right}}).pieces["x.bin"].nbytes == MIB
    with pytest.raises(ArtifactError, match=r"`files\.x\.bin\.pieces`|`nbytes`|`sha256`"):
        Provenance.from_json({**values, "files": {"x.bin": {**entry, "pieces": pieces}}})


@given(st.lists(st.binary(max_size=20), max_size=12), st.integers(1, 30))
def test_blocks_of_any_size_are_hashed_in_pieces(blocks: list[bytes], nbytes: int) -> None:
    hashes = PieceHashes(nbytes)
    for block in blocks:
        hashes.update(block)
    content = b"".join(blocks)
    starts = range(0, len(content), nbytes)
    expected = [hashlib.sha256(content[at : at + nbytes]).hexdigest() for at in starts]
    assert hashes.end() == Pieces(nbytes, tuple(expected))

"""Packed modules: lengths before texts, and the source that defines them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gemma4_compile.targets.linker.packed_modules import (
    BLOB,
    packed_text,
    unknown_form,
    write_source,
)


def test_a_length_is_before_each_text() -> None:
    assert packed_text(b"abc") == b"\x03" + bytes(7) + b"abc"


def test_a_source_names_its_blob_and_follows_its_bytes(tmp_path: Path) -> None:
    path = write_source(b"some bytes", tmp_path / "imports.c", "{blob} {size} {digest} {symbol}")
    blob, size, digest, symbol = path.read_text("utf-8").split()
    assert (tmp_path / blob).read_bytes() == b"some bytes"
    assert (blob, size, symbol) == (BLOB, "10", "__tvm_ffi__library_bin")
    assert digest == hashlib.sha256(b"some bytes").hexdigest()


def test_an_unknown_form_is_an_error_with_a_hint() -> None:
    error = unknown_form("two modules")
    assert "two modules" in str(error)
    assert error.hint is not None
    assert "apache-tvm" in error.hint

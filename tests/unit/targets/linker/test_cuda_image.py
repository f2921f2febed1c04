"""The packed form of device code: PTX takes the source's place, all else stays."""

import struct

import pytest

from gemma4_compile.errors import TargetError
from gemma4_compile.targets.linker.cuda_image import with_compiled

SOURCE = "__global__ void kernel() {}"
KERNELS = b"<what the kernels take>"


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def blob(form: bytes, data: bytes) -> bytes:
    tree = struct.pack("<QQQ", 2, 0, 1) + struct.pack("<QQ", 1, 1)
    device = text(b"cuda") + text(text(form) + KERNELS + text(data))
    after = text(b"other") + text(b"kind cuda, too")
    return text(tree + text(b"_lib") + device + after)


def test_ptx_replaces_the_source() -> None:
    before = blob(b"cuda", SOURCE.encode())
    # The driver reads PTX up to a zero.
    assert with_compiled(before, SOURCE, b".version 9.0\n") == blob(b"ptx", b".version 9.0\n\0")


@pytest.mark.parametrize("form", [b"ptx", b"cubin"])
def test_another_form_is_refused(form: bytes) -> None:
    with pytest.raises(TargetError, match="unknown form"):
        with_compiled(blob(form, SOURCE.encode()), SOURCE, b"")


def test_a_source_that_is_not_there_is_refused() -> None:
    with pytest.raises(TargetError, match="unknown form"):
        with_compiled(blob(b"cuda", b"another source"), SOURCE, b"")

"""The packed form of device code: images take the source's place, all else stays."""

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


def test_images_replace_the_source() -> None:
    before = blob(b"cuda", SOURCE.encode())
    compiled = b"two\0images\0"
    assert with_compiled(before, SOURCE, compiled) == blob(b"ptx", compiled)


@pytest.mark.parametrize("form", [b"ptx", b"cubin"])
def test_another_form_is_refused(form: bytes) -> None:
    with pytest.raises(TargetError, match="unknown form"):
        with_compiled(blob(form, SOURCE.encode()), SOURCE, b"")


def test_a_source_that_is_not_there_is_refused() -> None:
    with pytest.raises(TargetError, match="unknown form"):
        with_compiled(blob(b"cuda", b"another source"), SOURCE, b"")

"""The packed form of device code: changed texts take their places, all else stays."""

import struct

import pytest

from gemma4_compile.errors import TargetError
from gemma4_compile.targets.linker.webgpu_image import with_texts

FIRST, SECOND = "//----\nfn first() {}\n", "//----\nfn second() {}\n"
KERNELS = b"<what the kernels take>"


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def blob(*texts: str, kind: bytes = b"webgpu", after: bytes = b"") -> bytes:
    tree = struct.pack("<QQQ", 2, 0, 1) + struct.pack("<QQ", 1, 1)
    named = b"".join(text(b"name") + text(code.encode()) for code in texts)
    own = KERNELS + struct.pack("<Q", len(texts)) + named + after
    others = text(b"relax.VMExecutable") + text(b"//---- no kernel")
    return text(tree + others + text(b"_lib") + text(kind) + text(own))


def test_every_text_is_changed_and_all_lengths_with_it() -> None:
    found = with_texts(blob(FIRST, SECOND), lambda code: code.replace("fn ", "fn another_"))
    assert found == blob(FIRST.replace("fn ", "fn another_"), SECOND.replace("fn ", "fn another_"))


def test_texts_that_stay_leave_the_blob_as_it_is() -> None:
    before = blob(FIRST, SECOND)
    assert with_texts(before, lambda code: code) == before


@pytest.mark.parametrize(
    "packed",
    [
        blob(FIRST, kind=b"metal"),
        blob(FIRST, after=b"more"),
        blob("fn of another beginning() {}"),
        blob(FIRST) + blob(FIRST),
    ],
)
def test_another_form_is_refused(packed: bytes) -> None:
    with pytest.raises(TargetError, match="unknown form"):
        with_texts(packed, lambda code: code)

"""The form of several images, read back by the offsets that `fatbinary` of CUDA 13.0 writes."""

from __future__ import annotations

import struct

from gemma4_compile.targets.linker.fat_binary import fat_binary

OLD, NEW = b".version 9.0\n.target sm_75\n", b".version 9.1\n.target sm_80\n// longer\n"
HOPPER = b".version 9.0\n.target sm_90a\n"


def test_each_image_is_found_behind_its_header() -> None:
    data = fat_binary({"sm_90a": HOPPER, "sm_80": NEW, "sm_75": OLD})
    magic, version, own, size = struct.unpack_from("<IHHQ", data)
    assert (magic, version, own, size) == (0xBA55ED50, 1, 16, len(data) - 16)
    found, at = {}, own
    while at < len(data):
        kind, _, header, length = struct.unpack_from("<HHIQ", data, at)
        minor, major, architecture = struct.unpack_from("<HHI", data, at + 24)
        text = data[at + header : at + header + length]
        assert kind == 1, "PTX"
        assert length % 8 == 0 == text[-1], "the driver reads up to a zero"
        found[architecture] = (text.rstrip(b"\0"), (major, minor))
        at += header + length
    assert list(found.items()) == [
        (75, (OLD, (9, 0))),
        (80, (NEW, (9, 1))),
        (90, (HOPPER, (9, 0))),
    ]


def test_the_header_of_an_image_is_that_of_the_toolkit() -> None:
    # `fatbinary --64 --create=... --compress=false --image3=kind=ptx,sm=75,file=...`
    header = fat_binary({"sm_75": OLD})[16:96]
    words = "01000101 50000000 {} 00000000 00000000 40000000 00000900 4b000000 00000000 00000000 "
    words += "11000000" + " 00000000" * 5 + " 48000000" + " 00000000" * 3
    size = struct.pack("<I", len(OLD) + 5).hex()
    assert header == bytes.fromhex(words.format(size))


def test_an_image_for_one_architecture_says_so() -> None:
    # `nvcc -fatbin --no-compress -gencode arch=compute_90a,code=compute_90a`
    header = fat_binary({"sm_90a": HOPPER})[16:96]
    assert struct.unpack_from("<IIIQ", header, 28) == (90, 0, 0, 0x100011)

"""Kernels get the function that they call, and no others."""

import re
import struct

from gemma4_compile.targets.wgsl_halves import FUNCTION, write_halves

TEXT = "@compute fn kernel() {{ y[0] = ({})[0]; }}"


def test_a_call_brings_its_function_once() -> None:
    text = TEXT.format("gemma4_halves(w[0]) + gemma4_halves(w[1])")
    assert write_halves(text) == text + FUNCTION
    assert FUNCTION.count("fn gemma4_halves(") == 1


def test_a_text_without_a_call_stays_as_it_is() -> None:
    text = TEXT.format("w[0]")
    assert write_halves(text) == text


def test_it_is_written_without_hexadecimal_floats_that_an_old_reader_does_not_know() -> None:
    assert not re.search(r"0x[0-9a-f.]+p", FUNCTION)
    (bits,) = re.findall(r"bitcast<f32>\((0x[0-9a-f]+)u\)", FUNCTION)
    assert struct.unpack("<f", struct.pack("<I", int(bits, 16))) == (2**-24,)

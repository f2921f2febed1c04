"""Which schemes a text chooses integers of."""

from __future__ import annotations

from gemma4_compile.calibration.schemes import calibrated
from gemma4_compile.quantization.schemes import SCHEMES


def test_they_are_those_of_four_bits_in_groups() -> None:
    found = {name: calibrated(scheme) for name, scheme in SCHEMES.items()}
    wanted = {"q4f16_1", "q4f32_1", "q4_k"}
    assert {name for name, scheme in found.items() if scheme is not None} == wanted
    assert all(found[name] == SCHEMES[name] for name in wanted)

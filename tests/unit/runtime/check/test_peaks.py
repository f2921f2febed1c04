"""What is published of chips, and what an NVIDIA driver's clocks come to."""

from __future__ import annotations

import pytest

from gemma4_compile.runtime.check.peaks import chips, peaks_of, peaks_of_chip, peaks_of_gpu
from gemma4_compile.runtime.device.device import Device


def test_the_table_has_the_chips_of_all_generations() -> None:
    names = {chip.name for chip in chips()}
    for generation in (1, 2, 3, 4, 5):
        assert {f"Apple M{generation}{kind}" for kind in ("", " Pro", " Max")} <= names
    assert {f"Apple M{generation} Ultra" for generation in (1, 2, 3)} <= names
    assert len({(chip.name, chip.gpu_cores) for chip in chips()}) == len(chips())
    for chip in chips():  # 128 multiply-adds a core and cycle, at 1 to 2.3 GHz
        assert 1.0 < 1e3 * chip.tflops / (2 * 128 * chip.gpu_cores) < 2.3, chip
        assert 50 < chip.gb_per_s < 1000, chip


def test_the_smaller_kind_of_a_chip_has_figures_of_its_own() -> None:
    small, large = peaks_of_chip("Apple M3 Max", 30), peaks_of_chip("Apple M3 Max", 40)
    assert (small.bytes_per_s, large.bytes_per_s) == (300e9, 400e9)
    assert small.operations_per_s == pytest.approx(14.2e12 * 30 / 40)
    assert large.operations_per_s == pytest.approx(14.2e12)
    assert "not Apple's figure" in large.source
    assert "not Apple's figure" not in peaks_of_chip("Apple M1", 8).source


def test_without_its_cores_a_chip_is_the_largest_of_its_name() -> None:
    found = peaks_of_chip("Apple M1", None)
    assert found.operations_per_s == pytest.approx(2.6e12)
    assert "macOS does not tell" in found.source


@pytest.mark.parametrize(
    ("name", "cores", "words"),
    [
        ("Apple M9 Max", 40, "lacks `Apple M9 Max`"),
        (None, None, "a chip without a name"),
        ("Apple M1", 12, "7 and 8 GPU cores, not 12"),
    ],
)
def test_what_the_table_lacks_has_no_shares(
    name: str | None, cores: int | None, words: str
) -> None:
    found = peaks_of_chip(name, cores)
    assert (found.bytes_per_s, found.operations_per_s) == (None, None)
    assert words in found.source


def test_clocks_of_an_h100_are_its_data_sheet() -> None:
    """SXM: 3.35 TB/s and 67 TFLOP/s of float32."""
    told = {13: 1_980_000, 16: 132, 36: 2_619_000, 37: 5120, 75: 9, 76: 0}
    found = peaks_of_gpu(told.get)
    assert found.bytes_per_s == pytest.approx(3.35e12, rel=0.01)
    assert found.operations_per_s == pytest.approx(67e12, rel=0.01)


def test_clocks_of_a_t4_are_its_data_sheet() -> None:
    """320 GB/s and 8.1 TFLOP/s of float32; Turing has half as many units."""
    told = {13: 1_590_000, 16: 40, 36: 5_001_000, 37: 256, 75: 7, 76: 5}
    found = peaks_of_gpu(told.get)
    assert found.bytes_per_s == pytest.approx(320e9, rel=0.01)
    assert found.operations_per_s == pytest.approx(8.1e12, rel=0.01)


def test_a_driver_that_tells_no_clock_of_its_memory_leaves_one_share_out() -> None:
    told = {13: 1_000_000, 16: 10, 36: 0, 37: 0, 75: 12, 76: 1}
    found = peaks_of_gpu(told.get)
    assert found.bytes_per_s is None
    assert found.operations_per_s == 1e9 * 10 * 128 * 2
    assert "GB/s" not in found.source
    assert "tells no clocks" in peaks_of_gpu(lambda _: None).source


def test_a_processor_is_in_no_table() -> None:
    found = peaks_of(Device.open("cpu"))
    assert (found.bytes_per_s, found.operations_per_s) == (None, None)
    assert "processor" in found.source

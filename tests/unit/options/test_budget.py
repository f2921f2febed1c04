"""`--fit`: sizes, names of devices, and what is neither."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_compile.errors import UsageError
from gemma4_compile.options.budget import Budget, budget_of, parse_fit, size_for
from gemma4_compile.targets.devices import DEVICES_FILE

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8GB", 8 * 10**9),
        ("8 GB", 8 * 10**9),
        (" 8gb ", 8 * 10**9),
        ("1.4GiB", 1_503_238_553),
        ("0.5 gib", GIB // 2),
        ("1048576", MIB),
        ("2000000000B", 2 * 10**9),
        ("64MiB", 64 * MIB),
        ("3TiB", 3 << 40),
    ],
)
def test_sizes_are_bytes(text: str, nbytes: int) -> None:
    found = budget_of(text, ("webgpu",))
    assert (found.total_bytes, found.device) == (nbytes, None)


@pytest.mark.parametrize(
    "text",
    ["8", "0", "0GB", "-1GB", "+1GB", "50%", "1e9", "8G", "1.GB", ".5GB", "8GBs", "8,5GB", "8 8GB"],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--fit: expected") as caught:
        parse_fit(text)
    assert caught.value.hint is not None
    assert "8GB" in caught.value.hint


@pytest.mark.parametrize("text", ["9" * 40 + "GB", "99999999999999999999GB", "2097152TiB"])
def test_huge_sizes_are_refused_and_large_ones_taken(text: str) -> None:
    with pytest.raises(UsageError, match="--fit: expected"):
        parse_fit(text)
    assert budget_of("1000000GB", ("webgpu",)).total_bytes == 10**15


def test_a_number_alone_is_said_to_be_bytes() -> None:
    with pytest.raises(UsageError, match=r"found 8 bytes \(`8`\)") as caught:
        parse_fit("8")
    assert str(caught.value.hint).endswith("8GB is gigabytes")


def test_a_device_has_what_a_model_can_take_and_no_margin() -> None:
    for target, entries in json.loads(DEVICES_FILE.read_text("utf-8")).items():
        for entry in entries:
            if entry["memory_bytes"] is None:
                with pytest.raises(UsageError, match="is not known"):
                    budget_of(entry["name"], (target,))
                continue
            found = budget_of(entry["name"].upper(), (target,))
            assert (found.device, found.total_bytes) == (entry["name"], entry["memory_bytes"])
            assert found.room_bytes == found.total_bytes


def test_the_first_target_that_has_a_device_gives_its_memory() -> None:
    webgpu, metal = (
        budget_of("laptop, Apple M, 16 GB", (one, "cuda")).total_bytes
        for one in ("webgpu", "metal")
    )
    assert webgpu != metal
    assert budget_of("laptop, Apple M, 16 GB", ("cuda", "metal")).total_bytes == metal


def test_a_device_of_another_target_and_an_unknown_one_name_what_there_is() -> None:
    with pytest.raises(UsageError, match="no device of target cuda is called") as caught:
        budget_of("phone, 8 GB", ("cuda",))
    assert "--target webgpu" in str(caught.value.hint)
    with pytest.raises(UsageError, match="found `phone`") as caught:
        parse_fit("phone")
    assert "'phone, 8 GB'" in str(caught.value.hint)


def test_a_margin_is_a_sixteenth_within_bounds() -> None:
    margins = [Budget("", nbytes).margin_bytes for nbytes in (MIB, GIB, 4 * GIB, 8 * GIB, 80 * GIB)]
    assert margins == [64 * MIB, 64 * MIB, 256 * MIB, 512 * MIB, 512 * MIB]
    assert Budget("", MIB).room_bytes < 0


@given(st.integers(1, 200 * GIB))
def test_the_size_for_a_room_is_the_smallest_that_has_it(room: int) -> None:
    found = size_for(room)
    assert Budget("", found).room_bytes >= room > Budget("", found - 1).room_bytes


def test_devices_that_a_hint_names_can_be_given() -> None:
    table = json.loads(DEVICES_FILE.read_text("utf-8"))
    unknown = {d["name"] for found in table.values() for d in found if d["memory_bytes"] is None}
    assert unknown
    for text in ("nothing alike", "software adapter"):
        with pytest.raises(UsageError, match="expected a size or a device") as caught:
            parse_fit(text)
        hint = str(caught.value.hint)
        assert "'discrete GPU, 8 GB'" in hint or text != "nothing alike"
        assert not any(f"'{name}'" in hint for name in unknown)

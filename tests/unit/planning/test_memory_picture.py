"""The picture of a package's memory: well-formed, to scale, and the same in words."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from gemma4_compile.planning.memory_picture import Memory, memory_picture, picture_words
from gemma4_compile.planning.weight_parts import PARTS

GIB = 1 << 30
PARTS_OF_E2B = {"decoder": GIB, "embedding": GIB // 2, "per_layer_embedding": 5 * GIB // 4, "kv": 0}
SVG = "{http://www.w3.org/2000/svg}"


def elements(memory: Memory) -> ET.Element:
    return ET.fromstring(memory_picture(memory))


def bars(root: ET.Element) -> list[tuple[float, float, float]]:
    """Place and width of every bar, without the background."""
    found = root.findall(f"{SVG}rect")[1:]
    return [tuple(float(one.get(key) or 0) for key in ("y", "x", "width")) for one in found]  # type: ignore[misc]


def test_bars_are_to_scale_and_the_last_has_all_of_them() -> None:
    found = bars(elements(Memory(PARTS_OF_E2B)))
    rows = [[bar for bar in found if bar[0] == y] for y in dict.fromkeys(y for y, _, _ in found)]
    assert [len(row) for row in rows] == [1, 1, 1, 1, 4]
    *parts, together = rows
    widths = [row[0][2] for row in parts]
    assert widths[1] / widths[0] == pytest.approx(0.5, abs=0.001)
    assert widths[2] / widths[0] == pytest.approx(1.25, abs=0.001)
    assert sum(width for _, _, width in together) == pytest.approx(sum(widths), abs=0.05)
    for left, right in pairwise(together):
        assert right[1] == pytest.approx(left[1] + left[2], abs=0.02)


def test_a_budget_is_drawn_beside_what_it_holds() -> None:
    found = bars(elements(Memory(PARTS_OF_E2B, budget_bytes=11 * GIB // 2)))
    total = sum(width for y, _, width in found if y == found[-2][0])
    assert found[-1][2] / total == pytest.approx(2.0, abs=0.001)
    assert all(x + width <= 760 for _, x, width in found)


def test_what_is_on_the_host_is_an_outline_and_not_counted() -> None:
    memory = Memory(PARTS_OF_E2B, {"per_layer_embedding": GIB})
    assert memory.on_device == {**PARTS_OF_E2B, "per_layer_embedding": GIB // 4}
    outlined = [one for one in elements(memory).iter(f"{SVG}rect") if one.get("fill") == "none"]
    assert len(outlined) == 1
    words = picture_words(memory)
    assert words.startswith("Memory of the device: 1.75 GiB in all")
    assert "on the host per-layer embedding table 1.00 GiB" in words
    assert f"{256.0} MiB, 1.00 GiB on the host" in memory_picture(memory)


def test_it_has_its_words_for_those_who_do_not_see_it() -> None:
    memory = Memory(PARTS_OF_E2B, budget_bytes=4 * GIB)
    root = elements(memory)
    assert root.get("role") == "img"
    described = {one.get("id"): one.text for one in root if one.get("id")}
    assert [described[name] for name in str(root.get("aria-labelledby")).split()] == [
        "Memory of the device by part",
        picture_words(memory),
    ]
    texts = [one.text for one in root.iter(f"{SVG}text")]
    assert all(PARTS[part] in texts for part in PARTS_OF_E2B)
    assert "budget" in texts


def test_names_are_escaped_and_cut() -> None:
    evil = '</text><script>alert("1")</script>&' + "x" * 500
    root = elements(Memory({evil: GIB, "kv": 1}))
    assert not [*root.iter(f"{SVG}script")]
    assert evil[:60] in [one.text for one in root.iter(f"{SVG}text")]


def test_a_picture_of_nothing_is_one() -> None:
    assert [width for _, _, width in bars(elements(Memory({"kv": 0})))] == [0.0, 0.0]
    assert [*elements(Memory({}))]

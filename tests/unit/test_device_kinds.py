"""Devices by what they can do: their numbers, and that nothing asks for one by its name."""

from __future__ import annotations

import re

import tvm_ffi

from gemma4_compile.device_kinds import CPU, CUDA, NATIVE_KINDS, DeviceType
from tools.imports import SOURCES

NAME = r"(?:\"(?:cpu|cuda|metal|webgpu|\.wasm)\"|_?BROWSERS?\b|HOST\b|DeviceType\.\w+)"
EQUALS = r"(?:==|!=|\bis(?: not)?)"
QUESTION = re.compile(rf"{EQUALS} {NAME}|{NAME} {EQUALS}|in [{{(]{NAME}")
ONE_PLACE = "gemma4_compile.device_kinds"


def test_numbers_are_those_of_dlpack() -> None:
    for kind in DeviceType:
        assert tvm_ffi.device(kind.name.lower(), 0).dlpack_device_type() == kind


def test_kinds_are_named_by_their_devices() -> None:
    assert {name: kind.type.name.lower() for name, kind in NATIVE_KINDS.items()} == {
        name: name for name in NATIVE_KINDS
    }


def test_a_host_needs_nothing_and_records_nothing() -> None:
    assert CPU.is_host
    assert not any(
        (CPU.has_driver, CPU.records_graphs, CPU.has_events, CPU.reads_beside, CPU.draws)
    )
    assert CUDA.has_driver


def test_nobody_asks_for_a_device_by_its_name() -> None:
    asked = [
        f"{module}:{number}"
        for module, path in SOURCES.items()
        if module != ONE_PLACE
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if QUESTION.search(line)
    ]
    assert asked == []
    assert QUESTION.search(SOURCES[ONE_PLACE].read_text("utf-8"))

"""Descriptions of AltUp's operators in libraries that were compiled before."""

from __future__ import annotations

import json

from gemma4_compile.operators.altup import AltupCollapse
from gemma4_compile.operators.base import description_of, operator_from
from gemma4_compile.operators.rows import ONE


def test_an_earlier_library_reads_its_first_stream_among_all() -> None:
    description = description_of(AltupCollapse(ONE, 4, 32, apart=True).prim_func())
    assert description is not None
    fields = json.loads(description)
    assert fields.pop("apart") is True
    found = []
    for text in (description, json.dumps(fields)):
        params = operator_from(text).prim_func().params
        found.append([tuple(map(int, param.shape)) for param in params])
    others = [(1, 32)] * 4
    assert found == [[(1, 32), *others], [(1, 128), *others]]

from __future__ import annotations

from gemma4_compile.runtime.server.counts import SECONDS, Distribution


def test_a_value_is_counted_once_in_the_least_part_that_holds_it() -> None:
    values = [0.0, SECONDS[0], 0.011, 7.0, SECONDS[-1], 1e6]
    found = Distribution()
    for value in values:
        found.add(value)
    bounds = [*SECONDS, float("inf")]
    expected = [0] * len(bounds)
    for value in values:
        expected[next(i for i, bound in enumerate(bounds) if value <= bound)] += 1
    assert found.counts == expected
    assert found.total == sum(values)

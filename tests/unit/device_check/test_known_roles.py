"""Of the kernels of a role, which is tested."""

from __future__ import annotations

from gemma4_compile.device_check.known_roles import ROLES, TIMED_BYTES, Role


def test_the_smallest_is_taken() -> None:
    role = Role("a", ("kind",))
    assert min((30, 10, 20), key=role.cost) == 10


def test_of_those_that_are_timed_the_largest_that_may_be() -> None:
    role = Role("a", ("kind",), timed_bytes=20)
    assert min((30, 10, 20), key=role.cost) == 20
    assert min((30, 40), key=role.cost) == 30
    assert [one.title for one in ROLES if one.timed_bytes == TIMED_BYTES] == ["matmul of one token"]

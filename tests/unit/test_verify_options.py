from __future__ import annotations

from gemma4_compile import verify_options


def test_steps_are_at_least_one() -> None:
    assert verify_options.main(["DIR", "--reference", "tiny", "--steps", "1"]) == 0
    assert verify_options.main(["DIR", "--reference", "tiny", "--steps", "0"]) == 2

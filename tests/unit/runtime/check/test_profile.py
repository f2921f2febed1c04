"""The table of a profile; `tests/e2e/test_profile.py` profiles a package."""

from gemma4_compile.runtime.check.kernel_times import KernelTime
from gemma4_compile.runtime.check.profile import StepProfile, profile_table


def test_kernels_stand_beside_the_whole_step() -> None:
    kernels = (
        KernelTime("gemv", "linear", "3 sliding, 1 full", 4, 0.003, 6_000_000),
        KernelTime("attention", "decode_attention", "1 full", 1, 0.001, None),
    )
    text = profile_table(StepProfile("a token", kernels, 0.005, "by events"))
    head, names, gemv, attention, total = text.splitlines()
    assert head == "a token (by events)"
    assert names.split() == ["kernel", "operator", "belongs", "to", "calls", "ms", "share", "GB/s"]
    assert gemv.split()[-5:] == ["4", "3.000", "75.0", "%", "2.00"]
    assert attention.split()[-5:] == ["1", "1.000", "25.0", "%", "-"]
    assert total == "5 launches take 4.000 ms; the step without the profile takes 5.000 ms"


def test_a_step_that_takes_no_time_has_no_shares() -> None:
    kernels = (KernelTime("gemv", "linear", "input", 1, 0.0, 8),)
    row = profile_table(StepProfile("a token", kernels, 0.0, "")).splitlines()[2]
    assert row.split() == ["gemv", "linear", "input", "1", "0.000", "-", "-"]

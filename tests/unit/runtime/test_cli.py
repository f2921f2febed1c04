from __future__ import annotations

import io
from pathlib import Path

import pytest

from gemma4_compile.runtime.cli import main

LONG_REPLY = "Chess"  # which `tiny` knows nothing about, and says so at length


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_one_prompt_prints_the_reply_alone(
    tiny_package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, tiny_package, "--prompt", "Hi", "--greedy", "--max-tokens", 5)
    assert (status, err) == (0, "")
    assert out.endswith("\n")
    assert out.strip()


def test_greedy_is_temperature_zero(tiny_package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = (tiny_package, "--prompt", "Hi", "--max-tokens", 8)
    greedy = run(capsys, *common, "--greedy")
    assert greedy == run(capsys, *common, "--temperature", 0)


def test_a_seed_repeats_the_reply(tiny_package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = (tiny_package, "--prompt", "Hi", "--max-tokens", 12, "--top-p", 0.9, "--top-k", 50)
    hot = (*common, "--temperature", 6)  # or every seed draws the one right answer
    first, again, other = (run(capsys, *hot, "--seed", seed) for seed in (1, 1, 2))
    assert first == again != other


def test_a_conversation_goes_on_until_the_end_of_input(
    tiny_package: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi\n\nand?\n/clear\nHi\n/exit\nnever\n"))
    status, out, _ = run(capsys, tiny_package, "--greedy", "--max-tokens", 4)
    assert status == 0
    replies = out.splitlines()
    assert len(replies) == 3
    assert replies[0] == replies[2] != replies[1]


def test_the_end_of_the_context_is_an_error_that_keeps_the_reply(
    tiny_package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(
        capsys, tiny_package, "--prompt", LONG_REPLY, "--greedy", "--context-length", 24
    )
    assert status == 1
    assert out.strip()
    assert err.startswith("error: the context is full: the reply was cut")
    assert "hint: " in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--top-p", 2), 2, "top_p"),
        (("--temperature", -1), 2, "temperature"),
        (("--max-tokens", 0), 2, "--max-tokens"),
        (("--greedy", "--temperature", 1), 2, "exclude each other"),
        (("--context-length", 10**6), 2, "context length"),
    ],
)
def test_meaningless_options_are_usage_errors(
    tiny_package: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[object, ...],
    status: int,
    message: str,
) -> None:
    found = run(capsys, tiny_package, "--prompt", "x", *arguments)
    assert found[0] == status
    assert message in found[2]
    assert found[2].startswith("error: ")


def test_a_directory_that_is_no_package_fails_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, tmp_path, "--prompt", "x")
    assert (status, out) == (1, "")
    assert "provenance.json" in err
    assert "hint: " in err


def test_unknown_options_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["somewhere", "--no-such-option"])
    assert leaving.value.code == 2
    assert "--no-such-option" in capsys.readouterr().err

"""Arguments of the commands that run packages: known without TVM, NumPy or the package."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from gemma4_compile.options.chat import CHECKS, COMMAND
from gemma4_compile.runtime.package.integrity import Check

LOADS_NOTHING = """
import sys
from gemma4_compile.cli import start
sys.argv = sys.argv[1:]
command = {each: getattr(start, f"run_{each[7:]}") for each in
           ("gemma4-chat", "gemma4-serve", "gemma4-verify")}[sys.argv[0]]
try:
    code = command()
except SystemExit as end:
    code = end.code
print(code, sorted({"tvm", "tvm_ffi", "numpy", "tokenizers", "starlette"} & set(sys.modules)))
"""
MOST_CPU_S = 0.5


def test_the_words_of_check_are_the_runtimes() -> None:
    assert tuple(check.value for check in Check) == CHECKS


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("gemma4-chat --version", 0, "gemma4-chat 0."),
        ("gemma4-chat --debug --version", 0, "gemma4-chat 0."),
        ("gemma4-chat -h", 0, "usage: gemma4-chat"),
        ("gemma4-chat", 2, "required: DIR"),
        ("gemma4-chat x --fast", 2, "unrecognized arguments: --fast"),
        ("gemma4-chat x --top-k -1", 2, "--top-k: expected an integer from 0"),
        ("gemma4-chat x --temperature nan", 2, "--temperature: expected a number from 0 to 100"),
        ("gemma4-chat x --top-p 2", 2, "--top-p: expected"),
        ("gemma4-chat x --seed -1", 2, "--seed: expected 0 or more"),
        ("gemma4-chat x --max-tokens 0", 2, "--max-tokens: expected at least 1"),
        ("gemma4-chat x --context-length 0", 2, "--context-length: expected at least 1"),
        ("gemma4-chat x --check never", 2, "invalid choice"),
        ("gemma4-chat x --draft many", 2, "--draft: expected auto or a number from 0 to 8"),
        ("gemma4-chat x --experts half", 2, "a share from 0% to 100%, found 'half'"),
        ("gemma4-serve x --experts 100.1%", 2, "--experts: expected gpu, host, auto or a share"),
        ("gemma4-chat x --experts=-1%", 2, "a share from 0% to 100%, found '-1%'"),
        ("gemma4-chat x --experts 0.5", 2, "a share from 0% to 100%, found '0.5'"),
        ("gemma4-chat x --experts nan%", 2, "found 'nan%'"),
        ("gemma4-chat x --experts \u0665%", 2, "a share from 0% to 100%"),
        ("gemma4-serve x --ple disk", 2, "--ple: expected gpu, host or auto, found 'disk'"),
        ("gemma4-serve x --draft 9", 2, "--draft: expected 0 to 8, found 9"),
        ("gemma4-chat x --greedy --temperature 1", 2, "exclude each other"),
        ("gemma4-chat x --prompt a --prompt-file b", 2, "not allowed with argument"),
        ("gemma4-chat x --prompt=", 2, "the question is empty"),
        ("gemma4-chat x --raw --thinking --json-schema f", 2, "--thinking, --json-schema cannot"),
        ("gemma4-chat x --image", 2, "--image: expected one argument"),
        ("gemma4-chat x --image-tokens 300 --image f", 2, "invalid choice"),
        ("gemma4-chat x --raw --image f --audio g", 2, "--image, --audio cannot be with it"),
        ("gemma4-chat x --bench --image f", 2, "conversation: --image cannot be with it"),
        ("gemma4-chat x --bench --prompt a --raw", 2, "--prompt, --raw cannot be with it"),
        ("gemma4-chat x --bench --profile --tune", 2, "--tune cannot be with it"),
        ("gemma4-chat x --profile --prompt a", 2, "--profile stands instead of a conversation"),
        ("gemma4-chat x --bench --diagnose", 2, "--bench stands instead of a conversation"),
        ("gemma4-chat x --diagnose f --thinking", 2, "--thinking cannot be with it"),
        ("gemma4-serve --version", 0, "gemma4-serve 0."),
        ("gemma4-serve --help", 0, "usage: gemma4-serve"),
        ("gemma4-serve", 2, "no package is given"),
        ("gemma4-serve --forget --prefix-cache d", 2, "no folder is given"),
        ("gemma4-serve x --model a=y", 2, "both `x` and --model are given"),
        ("gemma4-serve --model y", 2, "--model: expected NAME=DIR_OR_ID, found `y`"),
        ("gemma4-serve --model =y", 2, "--model: expected NAME=DIR_OR_ID"),
        ("gemma4-serve --model a=y --model a:latest=z", 2, "two packages have the name `a`"),
        ("gemma4-serve --model a=y --model-name b", 2, "--model-name is for one package"),
        ("gemma4-serve --model a=y --page nowhere", 2, "has no `index.html`"),
        ("gemma4-serve --model a=y --memory 0", 2, "--memory is 0"),
        ("gemma4-serve --model a=y --memory 8", 2, "expected a size such as 2GiB"),
        ("gemma4-serve --model a=y --idle 0", 2, "--idle: expected 1 to 2592000"),
        ("gemma4-serve x --memory 8GB", 2, "--memory is for several packages"),
        ("gemma4-serve x --idle 8", 2, "--idle is for several packages"),
        ("gemma4-serve x --port 70000", 2, "--port: expected 0 to 65535"),
        ("gemma4-serve x --port many", 2, "invalid int value"),
        ("gemma4-serve x --queue -1", 2, "--queue: expected"),
        ("gemma4-serve x --allow-origin example.org", 2, "--allow-origin: expected an origin"),
        ("gemma4-serve x --page nowhere", 2, "has no `index.html`"),
        ("gemma4-serve x --context-length 0", 2, "--context-length: expected at least 1"),
        ("gemma4-verify --version", 0, "gemma4-verify 0."),
        ("gemma4-verify --help", 0, "usage: gemma4-verify"),
        ("gemma4-verify x", 2, "required: --reference"),
        ("gemma4-verify x --reference tiny --steps 0", 2, "--steps: expected at least 1"),
    ],
)
def test_what_needs_no_package_loads_nothing(command: str, code: int, said: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", LOADS_NOTHING, *command.split()],
        capture_output=True,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert said in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"{code} []"
    taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert taken < MOST_CPU_S


def test_files_keep_the_order_in_which_they_were_given() -> None:
    given = ["x", "--image", "a", "--audio", "b", "--video", "c", "--image", "d"]
    assert [(kind, path.name) for kind, path in COMMAND.parse(given).attachments] == [
        ("image", "a"),
        ("audio", "b"),
        ("video", "c"),
        ("image", "d"),
    ]
    assert COMMAND.parse(["x"]).attachments == ()


def test_a_profile_may_follow_a_benchmark() -> None:
    COMMAND.parse(["x", "--bench", "--profile"])
    assert COMMAND.parsed(["x", "--profile", "--bench", "--tune"]) == 2


def test_auto_is_the_number_of_drafts_that_there_is_by_default() -> None:
    found = [COMMAND.parse(["x", *more]).draft for more in ([], ["--draft", "auto"])]
    assert found == [None, None]
    assert COMMAND.parse(["x", "--draft", "4"]).draft == 4


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("auto", None),
        ("gpu", 1.0),
        ("host", 0.0),
        ("100%", 1.0),
        ("0%", 0.0),
        ("50%", 0.5),
        ("12.5%", 0.125),
        ("000%", 0.0),
    ],
)
def test_where_experts_lie_is_a_share_on_the_gpu(text: str, share: float | None) -> None:
    assert COMMAND.parse(["x", "--experts", text]).experts == share
    assert COMMAND.parse(["x"]).experts is None

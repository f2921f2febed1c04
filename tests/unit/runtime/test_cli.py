from __future__ import annotations

import io
import json
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from gemma4_compile.runtime import Chat, Sampler
from gemma4_compile.runtime.cli import main
from gemma4_compile.runtime.prefixes.prefix_folder import check_free
from gemma4_compile.runtime.reply.reply import TextDelta
from gemma4_compile.system import locks
from tests.commands import CHAT
from tests.packages import list_files
from tests.scripted_engine import END_OF_TURN, encode

LONG_REPLY = "Chess"  # which `tiny` knows nothing about, and says so at length


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_one_prompt_prints_the_reply_alone(
    tiny_package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, tiny_package, "--prompt", "Hi", "--greedy", "--max-tokens", 5)
    assert status == 0
    assert out.endswith("\n")
    assert out.strip()
    loaded, speed = err.splitlines()
    assert loaded.startswith("loaded ")
    assert speed.startswith("[5 tokens, first after ")
    assert speed.endswith("tok/s, ended by --max-tokens; prompt of 11, 0 of them known]")


def test_quiet_leaves_the_reply_alone(
    tiny_package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = (tiny_package, "--prompt", "Who are you?", "--greedy")
    status, out, err = run(capsys, *common, "--quiet")
    assert (status, err) == (0, "")
    assert out == "I am tiny, a very small Gemma 4 model that ships with gemma4-compile.\n"


def test_a_package_of_text_refuses_pictures_before_it_is_loaded(
    tiny_package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option, what in (("--image", "pictures"), ("--audio", "sounds"), ("--video", "videos")):
        status, out, err = run(capsys, tiny_package, option, tmp_path / "f", "--prompt", "Hi")
        assert (status, out) == (2, "")
        assert f"takes no {what}" in err
        assert "--modalities" in err
        assert "loaded" not in err


def test_a_later_chat_goes_on_from_a_folder(
    tiny_package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its reply is the same, and fewer tokens are read."""
    said = ("--system", "One two three four five six seven eight nine ten. " * 8, "--greedy")
    common = (tiny_package, *said, "--prompt", "Who are you?", "--max-tokens", 4)
    cached = (*common, "--prefix-cache", tmp_path / "kept")
    status, fresh, told = run(capsys, *cached)
    assert status == 0
    assert ", 0 of them known]" in told
    status, again, told = run(capsys, *cached)
    assert (status, again) == (0, fresh)
    known = re.search(r"prompt of ([0-9]+), ([0-9]+) of them known", told)
    assert known is not None
    assert int(known[2]) > int(known[1]) // 2


def test_a_folder_of_another_is_refused_before_anything_is_loaded(
    tiny_package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o755)
    status, _, err = run(capsys, tiny_package, "--prompt", "Hi", "--prefix-cache", tmp_path)
    assert status == 2
    assert "others may look into" in err
    assert "loaded" not in err
    taken = tmp_path / "taken"
    check_free(taken)
    with (taken / "prefixes.lock").open("rb+") as lock:
        locks.take(lock.fileno())
        status, _, err = run(capsys, tiny_package, "--prompt", "Hi", "--prefix-cache", taken)
    assert status == 2
    assert "another process keeps its prefixes" in err
    assert "loaded" not in err
    status, _, err = run(capsys, tiny_package, "--prefix-cache", "d", "--prefix-memory", 0)
    assert status == 2
    assert "--prefix-memory" in err


@pytest.mark.parametrize("place", ["file", "stdin"])
def test_a_question_comes_from_a_file(
    place: str,
    tiny_package: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    question = tmp_path / "question.txt"
    question.write_text("Who are you?\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("Who are you?\n"))
    source = question if place == "file" else "-"
    status, out, _ = run(capsys, tiny_package, "--prompt-file", source, "--greedy")
    assert (status, out.split(",")[0]) == (0, "I am tiny")


def test_a_reply_in_a_schema(
    tiny_package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = tmp_path / "schema.json"
    answer = {"enum": ["yes", "no"]}
    form = {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}
    schema.write_text(json.dumps({**form, "additionalProperties": False}))
    asked = (tiny_package, "--prompt", "Is 37 odd?", "--json-schema", schema, "--quiet")
    status, out, _ = run(capsys, *asked, "--greedy")
    assert status == 0
    assert json.loads(out)["answer"] in ("yes", "no")


def test_reasoning_is_kept_off_stdout(
    tiny_package: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # `tiny` has not learnt to think, so a script thinks for it.
    said = iter([*encode("<|channel>thought\nhm, who?\n<channel|>A model."), END_OF_TURN])
    monkeypatch.setattr(Sampler, "__call__", lambda self, logits: next(said))
    status, out, err = run(capsys, tiny_package, "--prompt", "Who?", "--thinking", "--quiet")
    assert (status, out, err) == (0, "A model.\n", "hm, who?\n")


def test_the_oldest_question_can_be_forgotten(
    tiny_package: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "My name is Clara.\nWhat is 8 plus 19?\n{}What is my name?\n/nonsense\n"
    answers = []
    for command in ("", "/forget\n"):
        monkeypatch.setattr("sys.stdin", io.StringIO(asked.format(command)))
        status, out, err = run(capsys, tiny_package, "--greedy")
        assert status == 1
        assert "error: unknown command /nonsense" in err
        answers.append(out.splitlines()[-1])
    assert answers[0] == "Your name is Clara."
    assert "Clara" not in answers[1]


def test_a_conversation_goes_on_after_the_context_was_full(
    tiny_package: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = f"{'many words ' * 40}\nHi\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(asked))
    status, out, err = run(capsys, tiny_package, "--greedy", "--context-length", 60)
    assert status == 1
    assert "error: the context is full: this conversation takes" in err
    assert "hint: /forget drops" in err
    assert len(out.splitlines()) == 2
    assert out.splitlines()[1]


def test_ctrl_c_stops_an_answer_and_the_conversation_goes_on(tiny_package: Path) -> None:
    command = [*CHAT, str(tiny_package)]
    wild = ["--temperature", "100", "--top-k", "0", "--top-p", "1", "--seed", "1"]
    with subprocess.Popen(
        [*command, *wild], stdin=PIPE, stdout=PIPE, stderr=PIPE, bufsize=0
    ) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        assert chat.stderr is not None
        patience = threading.Timer(120, chat.kill)  # rather than wait for ever
        patience.start()
        chat.stdin.write(b"Hi\n")
        assert chat.stdout.read(1)
        chat.send_signal(signal.SIGINT)
        said = b""
        while b"(stopped)" not in said:
            line = chat.stderr.readline()
            assert line, said.decode()
            said += line
        assert b", stopped; prompt of " in said
        chat.stdin.write(b"And?\n/exit\n")
        chat.stdin.close()
        rest = chat.stderr.read().decode()
        assert "error: the context is full: the reply was cut" in rest  # it is wild
        assert chat.wait(120) == 1
        assert "Traceback" not in rest
        # The second prompt holds the first question and what was said before the stop.
        assert int(rest.split("prompt of ")[1].split(",")[0]) > 20
        patience.cancel()


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_questions_are_utf_8_whatever_the_locale(
    encoding: str,
    tiny_package: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    question = "Grüße, 你好"
    asked: list[str] = []

    def events(_: Chat, text: str, *__: object, **___: object) -> Iterator[TextDelta]:
        asked.append(text)
        yield TextDelta("ü")

    monkeypatch.setattr(Chat, "events", events)

    typed = io.BytesIO(b"\xff\n" + question.encode() + b"\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(typed, encoding))
    status, out, err = run(capsys, tiny_package)
    assert (status, asked) == (1, [question])  # and not the first line, which is not UTF-8
    assert out == "ü\n"
    assert "error: this question is not UTF-8: " in err
    argument = question.encode().decode("ascii", "surrogateescape")  # as the C locale has it
    assert run(capsys, tiny_package, "--prompt", argument)[0] == 0
    assert asked[1:] == [question]


@pytest.mark.parametrize("option", ["--prompt", "--system"])
def test_arguments_that_are_not_utf_8_are_usage_errors(
    option: str, tiny_package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"--prompt": "x", option: "a\udcff"}
    flat = [word for pair in arguments.items() for word in pair]
    status, out, err = run(capsys, tiny_package, *flat)
    assert (status, out) == (2, "")
    assert "is not UTF-8" in err


def test_help_is_no_question(
    tiny_package: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("/help\n"))
    status, out, err = run(capsys, tiny_package)
    assert (status, out) == (0, "")
    assert err.count("drops the oldest question and answer") == 1
    assert "error" not in err


def test_greedy_is_temperature_zero(tiny_package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = (tiny_package, "--prompt", "Hi", "--max-tokens", 8)
    greedy = run(capsys, *common, "--greedy")
    assert greedy[:2] == run(capsys, *common, "--temperature", 0)[:2]


def test_a_seed_repeats_the_reply(tiny_package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = (tiny_package, "--prompt", "Hi", "--max-tokens", 12, "--top-p", 0.9, "--top-k", 50)
    hot = (*common, "--temperature", 6)  # or every seed draws the one right answer
    first, again, other = (run(capsys, *hot, "--seed", seed)[1] for seed in (1, 1, 2))
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
        capsys, tiny_package, "--prompt", LONG_REPLY, "--greedy", "--context-length", 24, "--quiet"
    )
    assert status == 1
    assert out.strip()
    assert err.startswith("error: the context is full: the reply was cut")
    assert "hint: " in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--top-p", 2), 2, "--top-p: expected a number from 0 to 1"),
        (("--temperature", -1), 2, "--temperature: expected"),
        (("--max-tokens", 0), 2, "--max-tokens"),
        (("--greedy", "--temperature", 1), 2, "exclude each other"),
        (("--context-length", 10**6), 2, "context length"),
        (("--seed", -1), 2, "--seed"),
        (("--json-schema", "nowhere.json"), 2, "--json-schema: cannot read"),
        (("--raw", "--system", "x"), 2, "--raw goes on with a text and has no messages: --system"),
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


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"type": "nothing"}',
        "[" * 100_000,
        '{"type": "integer", "enum": [-1e308]}',
        '{"type": "integer", "multipleOf": 2147483648}',
        '{"$ref": "#"}',
        '{"const": %s}' % 10**400,
    ],
)
def test_a_file_that_is_no_schema_is_a_usage_error(
    text: str, tiny_package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(text)
    status, out, err = run(capsys, tiny_package, "--prompt", "x", "--json-schema", schema)
    assert (status, out) == (2, "")
    assert "schema" in err.splitlines()[0]


def test_an_empty_question_is_a_usage_error(
    tiny_package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, tiny_package, "--prompt", " ")[0] == 2


def test_a_directory_that_is_no_package_fails_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, tmp_path, "--prompt", "x")
    assert (status, out) == (1, "")
    assert "provenance.json" in err
    assert "hint: " in err


def test_control_tokens_may_be_taken_as_text(
    tiny_package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (tiny_package, "--prompt", "<turn|><|turn>x", "--max-tokens", 1)
    sizes = []
    for options in ((), ("--literal-specials",)):
        status, _, err = run(capsys, *asked, *options)
        assert status == 0
        sizes.append(int(err.split("prompt of ")[1].split(",")[0]))
    assert sizes[1] > sizes[0]


def test_a_base_models_package_goes_on_with_texts(
    tiny_package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "base"
    shutil.copytree(tiny_package, folder)
    (folder / "chat_template.jinja").unlink()
    list_files(folder)
    status, out, err = run(capsys, folder, "--prompt", "Hi")
    assert (status, out) == (1, "")
    assert "has no chat template" in err
    assert f"hint: gemma4-chat {folder} --raw" in err
    text = "<|turn>user\nWho are you?<turn|>\n<|turn>model\n"
    for package in (folder, tiny_package):  # those of other models as well
        status, out, _ = run(capsys, package, "--raw", "--prompt", text, "--greedy")
        assert (status, out.split(",")[0]) == (0, "I am tiny")


def test_raw_texts_come_from_a_pipe(
    tiny_package: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    block = '"""\n<|turn>user\nWho are you?<turn|>\n<|turn>model\n\n"""\n'
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{block}/clear\n/help\n/exit\nnever\n"))
    status, out, err = run(capsys, tiny_package, "--raw", "--greedy", "--max-tokens", 4)
    assert status == 1
    assert len(out.splitlines()) == 1
    assert "unknown command /clear" in err
    assert "every other line is a text" in err

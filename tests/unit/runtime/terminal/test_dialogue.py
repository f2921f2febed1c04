"""Messages and commands of a session, with a model that repeats what it is told."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from gemma4_compile.options.process import Terminated
from gemma4_compile.runtime import Chat, Sampler, SamplingOptions
from gemma4_compile.runtime.terminal.console import Console
from gemma4_compile.runtime.terminal.dialogue import Dialogue, FailedLinesError
from gemma4_compile.runtime.terminal.lines import PipedLines
from tests.media_files import picture_file, sound_file, tone
from tests.seeing_engine import Seeing

GREEDY = Sampler(SamplingOptions(temperature=0.0))


class Script:
    """Lines of a person who leaves at the end; an exception is raised in the place of a line."""

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self._lines = iter(lines)

    def read(self, prompt: str, *, kept: bool = True) -> str:
        del prompt, kept
        line = next(self._lines, EOFError)
        if isinstance(line, str):
            return line
        raise line


@pytest.fixture(scope="module")
def chat(tiny_package: Path) -> Chat:
    return Chat.open(tiny_package)


@pytest.fixture
def new(chat: Chat) -> Chat:
    chat.system = None
    chat.clear()
    return chat


def talk(chat: Chat, *lines: str | type[BaseException]) -> None:
    Dialogue(chat, Console(quiet=True), lambda: GREEDY, 40).converse(Script(*lines))


class Pipe(Script, PipedLines):
    """Lines of a pipe."""


def feed(chat: Chat, *lines: str | type[BaseException]) -> None:
    Dialogue(chat, Console(quiet=True), lambda: GREEDY, 40).converse(Pipe(*lines))


def test_several_lines_are_one_question(new: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    talk(new, "Which is larger,\n43 or 20?", '"""', "Which is smaller,", "7 or 9?", '"""')
    questions = [message.content for message in new.messages[::2]]
    assert questions == ["Which is larger,\n43 or 20?", "Which is smaller,\n7 or 9?"]
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_ctrl_c_leaves_when_it_is_pressed_twice(new: Chat) -> None:
    with pytest.raises(KeyboardInterrupt):
        talk(new, KeyboardInterrupt, KeyboardInterrupt, "never")
    assert not new.messages
    talk(new, KeyboardInterrupt, "Hi", KeyboardInterrupt, '"""', KeyboardInterrupt, "And?")


def test_ctrl_c_at_the_prompt_is_answered(new: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    Dialogue(new, Console(), lambda: GREEDY, 4).converse(Script(KeyboardInterrupt))
    assert "(Ctrl-C again leaves" in capsys.readouterr().err


def test_a_conversation_is_saved_and_loaded(
    new: Chat, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my chat.json"
    talk(new, "/system You are called Chip.", "My name is Clara.", f"/save {path}")
    saved = json.loads(path.read_text())["messages"]
    assert [message["role"] for message in saved] == ["system", "user", "assistant"]
    talk(new, "/clear", "/system clear", "/save", f"/save {path}", "/load nowhere.json")
    err = capsys.readouterr().err
    assert "/save needs the name of a file" in err
    assert "there is nothing to save" in err
    assert "cannot read `nowhere.json`" in err
    talk(new, "Hi", f"/save {path}", f"/save --force {path}", f"/load {path}", f"/load {path}")
    assert "is there already" in capsys.readouterr().err
    assert [message.role for message in new.messages] == ["user", "assistant"]
    path.write_text(json.dumps({"messages": saved}))
    talk(new, f"/load {path}", "What is my name?", "/system")
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == "Your name is Clara."
    assert captured.err.splitlines()[-1] == "system: You are called Chip."
    talk(new, "/clear", "What is your name?")
    assert capsys.readouterr().out == "I am Chip.\n"


def test_a_save_that_cannot_be_ends_nothing(
    new: Chat, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    talk(new, "Hi", "/save .", "/save --force", "/save --froce x", "/save\tchat.json", "Hello")
    err = capsys.readouterr().err
    assert "`.`: that is a folder" in err
    assert "/save needs the name of a file" in err
    assert "unknown option --froce" in err
    assert [path.name for path in tmp_path.iterdir()] == ["chat.json"]
    assert len(new.messages) == 4


def test_a_file_that_cannot_be_loaded_changes_nothing(new: Chat, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_text('{"messages": [{"role": "user", "content": "Hi"}]}')
    talk(new, "My name is Clara.", f"/load {damaged}")
    assert new.messages[0].content == "My name is Clara."


def test_a_system_message_counts_from_the_next_question_on(
    new: Chat, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = "Which number is larger: 43 or 20?"
    talk(new, "/system", "/system Be brief.", asked, "/system clear", "/system", asked)
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0] == "43"
    assert captured.out.splitlines()[1].startswith("43 ")
    no = "there is no system message"
    assert captured.err.splitlines() == [no, "system: Be brief.", no, no]
    assert [message.role for message in new.messages] == ["user", "assistant"] * 2


def test_unknown_commands_are_reported_and_paths_are_questions(
    new: Chat, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(new, "/sytem Be brief.", "/clear all", "/", "/etc/passwd is what?", '"""/exit"""', "/exit")
    err = capsys.readouterr().err
    assert "unknown command /sytem" in err
    assert "/clear takes nothing after it" in err
    questions = [message.content for message in new.messages[::2]]
    assert questions == ["/", "/etc/passwd is what?", "/exit"]


def test_what_is_shown_does_not_steer_the_terminal(
    new: Chat, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(new, "/system a\x1b]0;x\x07b", "/save \x1b[31m/x/y")
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failing", "why"),
    [
        ("/imgae cat.png", "unknown command"),
        ("/image nowhere.png", "takes no pictures"),
        ("/load nowhere.json", "cannot read"),
        ("/system \udcff", "is not UTF-8"),
        ("/clear all", "takes nothing after it"),
    ],
)
def test_a_question_of_a_pipe_is_not_asked_after_a_command_that_failed(
    failing: str, why: str, new: Chat, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FailedLinesError, match="2 lines of stdin"):
        feed(new, failing, "Who are you?")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert why in captured.err
    assert "this question is not asked: before it, `/" in captured.err
    talk(new, failing, "Who are you?")  # a person sees the error, and asks all the same
    assert capsys.readouterr().out.startswith("I am")


@pytest.mark.parametrize("failing", ["\udcff", "/save", "/help me", '"""'])
def test_lines_of_a_pipe_that_fail_are_counted(
    failing: str, new: Chat, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FailedLinesError, match="1 line of stdin"):
        feed(new, "Who are you?", failing)
    with pytest.raises(FailedLinesError):
        feed(new, failing, "/exit")
    assert capsys.readouterr().out.count("I am tiny") == 1
    feed(new, "Who are you?", "/exit")


def test_what_stands_for_a_command_that_failed(
    new: Chat, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = "Who are you?"
    path = tmp_path / "chat.json"
    feed(new, asked, f"/save {path}")
    for lines, answers in (
        (("/load none", asked, asked, asked), 0),
        (("/load none", f"/load {path}", asked), 1),
        (("/load none", "/clear", asked), 1),
        (("/system \udcff", "/clear", asked), 0),
        (("/system \udcff", "/system Be brief.", asked), 1),
        (("/image none", asked, asked), 1),
        (("/image none", "/detach", asked), 1),
        (("/image none", "/load none", "/detach", asked), 0),
    ):
        capsys.readouterr()
        with pytest.raises(FailedLinesError):
            feed(new, *lines)
        assert len(capsys.readouterr().out.splitlines()) == answers, lines
    with pytest.raises(KeyboardInterrupt):  # nobody would press it again
        feed(new, KeyboardInterrupt, asked)


def test_sigterm_leaves_wherever_it_arrives(new: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    for script in ((Terminated, "never"), ('"""', Terminated, "never")):
        with pytest.raises(Terminated):
            talk(new, *script)
    monkeypatch.setattr(Chat, "events", Mock(side_effect=Terminated))
    with pytest.raises(Terminated):
        talk(new, "Hi", "never")


class PanicException(BaseException):
    """As native code of `tokenizers` raises it."""


@pytest.mark.parametrize("error", [PanicException("regex"), RuntimeError("a fault of ours")])
def test_a_fault_ends_the_line_and_not_the_conversation(
    error: BaseException,
    new: Chat,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talk(new, "My name is Clara.")
    with monkeypatch.context() as patched:
        patched.setattr(Chat, "events", Mock(side_effect=error))
        talk(new, "What is my name?")
    assert f"internal error: {type(error).__name__}" in capsys.readouterr().err
    talk(new, "What is my name?")
    assert capsys.readouterr().out == "Your name is Clara.\n"


@pytest.fixture(scope="module")
def seeing(tiny_package: Path) -> Seeing:
    return Seeing(tiny_package)


def test_pictures_sounds_and_videos_are_shown_with_the_next_message(
    seeing: Seeing, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeing.reset()
    chat = Chat(seeing.engine, seeing.package)
    picture, sound = tmp_path / "a cat.png", tmp_path / "hello.wav"
    picture.write_bytes(picture_file(48, 48))
    sound.write_bytes(sound_file(tone(0.2)))
    pasted = str(picture).replace(" ", "\\ ")  # as terminals of macOS do it
    script = [
        f"/image '{picture}'",
        "/detach",
        f"/image {pasted}",
        "/detach",
        f"/image {picture}",
        f"/audio {sound}",
        "What?",
        "And?",
    ]
    Dialogue(chat, Console(), lambda: GREEDY, 3, image_tokens=70).converse(Script(*script))
    assert [len(message.media) for message in chat.messages] == [2, 0, 0, 0]
    assert [each.rows for each in chat.messages[0].media] == [64, 5]
    err = capsys.readouterr().err
    assert "a cat.png: 64 tokens, 64 of the next message by now" in err
    assert "hello.wav: 5 tokens, 69 of the next message by now" in err
    saved = tmp_path / "chat.json"
    Dialogue(chat, Console(), lambda: GREEDY, 3).converse(Script(f"/save {saved}"))
    assert "without what they show" in capsys.readouterr().err
    assert json.loads(saved.read_text())["messages"][0]["content"] == "What?"


def test_files_that_cannot_be_shown_leave_the_conversation_as_it_is(
    seeing: Seeing, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeing.reset()
    chat = Chat(seeing.engine, seeing.package)
    (tmp_path / "no.png").write_bytes(b"no picture")
    big = tmp_path / "big.png"
    big.write_bytes(picture_file(48, 48))
    script = ["/image", "/image nowhere.png", f"/audio {tmp_path}", f"/video {tmp_path / 'no.png'}"]
    Dialogue(chat, Console(quiet=True), lambda: GREEDY, 3).converse(Script(*script))
    err = capsys.readouterr().err
    assert "/image needs the name of a file" in err
    assert "cannot read `nowhere.png`" in err
    assert "a directory" in err
    assert "no video that is read here" in err
    assert not chat.attached
    # 256 rows and the words around them do not fit into a context of 256.
    Dialogue(chat, Console(quiet=True), lambda: GREEDY, 3).converse(Script(f"/image {big}", "Hm?"))
    err = capsys.readouterr().err
    assert "the context is full" in err
    assert "/detach" in err
    assert len(chat.attached) == 1
    assert not chat.messages


def test_a_package_without_media_says_what_to_compile(
    new: Chat, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(new, "/image a.png", "/audio a.wav", "/video a.mp4")
    err = capsys.readouterr().err
    for what in ("pictures", "sounds", "videos"):
        assert f"takes no {what}" in err
    assert "--modalities text,image" in err
    assert "--modalities text,audio" in err


def test_a_question_of_a_pipe_is_not_asked_without_its_picture(
    seeing: Seeing, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeing.reset()
    chat = Chat(seeing.engine, seeing.package)
    picture = tmp_path / "a.png"
    picture.write_bytes(picture_file(48, 48))
    script = [f"/image {picture}", "/image nowhere.png", "What?", "And?"]
    dialogue = Dialogue(chat, Console(quiet=True), lambda: GREEDY, 3, image_tokens=70)
    with pytest.raises(FailedLinesError, match="2 lines"):
        dialogue.converse(Pipe(*script))
    assert [message.content for message in chat.messages[::2]] == ["And?"]
    assert not chat.messages[0].media  # it was shown with the question that was not asked
    assert "before it, `/image nowhere.png` failed" in capsys.readouterr().err

"""`gemma4-serve` as a user runs it, on `tiny`, asked by the `openai` client."""

from __future__ import annotations

import json
import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.options.serve import API_KEY_VARIABLE
from gemma4_compile.package import files
from gemma4_compile.runtime import serve as cli
from gemma4_compile.runtime.serve import main
from tests.marks import slow_unless
from tests.serving import serving

ANSWER = "I am tiny, a very small Gemma 4 model that ships with gemma4-compile."

DRAFTER_FILE = "params_shard_drafter_0.bin"


@pytest.fixture(scope="module")
def client(tiny_package: Path) -> Iterator[openai.OpenAI]:
    with serving(tiny_package, "--model-name", "tiny") as address:
        yield openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=120)


def test_the_model_answers_as_in_the_terminal(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Who are you?"}], temperature=0
    )
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"


def test_a_conversation_in_pieces_reuses_its_beginning(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny",
        messages=[
            {"role": "user", "content": "What is 8 plus 19?"},
            {"role": "assistant", "content": "8 plus 19 is 27."},
            {"role": "user", "content": "Who are you?"},
        ],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ANSWER
    assert chunks[-1].usage is not None


def test_a_seed_repeats_a_reply(client: openai.OpenAI) -> None:
    def ask(seed: int) -> str:
        answer = client.completions.create(
            model="tiny", prompt=[500] * 20, temperature=2, top_p=1, seed=seed, max_tokens=12
        )
        return answer.choices[0].text

    replies = [ask(seed) for seed in range(8)]
    assert len(set(replies)) > 2
    assert [ask(seed) for seed in range(8)] == replies


def test_a_context_that_fills_up_ends_the_reply_by_length(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=[500] * 250, temperature=2, seed=3)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 257  # the last token is told and not read again


def test_the_form_that_the_browser_s_client_needs_is_followed(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_object", "schema": json.dumps({"const": {"a": 1}})}
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Say yes"}], response_format=form
    )
    assert json.loads(answer.choices[0].message.content or "") == {"a": 1}


def test_only_a_strict_server_refuses_fields_that_mean_nothing(
    client: openai.OpenAI, tiny_package: Path
) -> None:
    more: Any = {"prompt": "x", "max_tokens": 1, "extra_body": {"mystery": 1}}
    assert client.completions.create(model="tiny", **more).model_extra is not None
    with serving(tiny_package, "--strict-request") as address:
        strict = client.with_options(base_url=f"{address}/v1")
        with pytest.raises(openai.BadRequestError, match="`mystery`: is not a field"):
            strict.completions.create(model="tiny", **more)


def test_ctrl_c_ends_a_reply_that_is_being_told(tiny_package: Path) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 1000}
    form: Any = {"type": "json_schema", "json_schema": {"name": "long", "schema": schema}}
    told: list[str] = []
    with serving(tiny_package, "--model-name", "tiny") as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=120)
        stream = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Count."}],
            response_format=form,
            stream=True,
        )
        next(stream)

        def read() -> None:
            try:
                list(stream)
            except openai.APIError as error:
                told.append(error.message)

        reader = threading.Thread(target=read)
        reader.start()
    reader.join(120)
    assert told == ["the server is stopping"]


def test_a_package_for_browsers_is_served_as_files(tmp_path: Path) -> None:
    package, page = tmp_path / "package", tmp_path / "page"
    package.mkdir()
    page.mkdir()
    (page / "index.html").write_text("<p>chat</p>")
    (package / "model.wasm").write_bytes(b"wasm")
    files.finish(package, "model.wasm", {"target": "webgpu"})
    with serving(package, "--page", page) as address:
        for path, content in (("/", b"<p>chat</p>"), ("/package/model.wasm", b"wasm")):
            with urllib.request.urlopen(address + path) as response:
                assert response.read() == content
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/v1/models")


@pytest.mark.parametrize(
    ("file", "options"), [("model.wasm", []), (DRAFTER_FILE, ["--draft", "0"])]
)
def test_a_package_for_browsers_has_all_its_files(
    file: str,
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("model.wasm", DRAFTER_FILE):
        (tmp_path / name).write_bytes(b"whole")
    files.finish(tmp_path, "model.wasm", {"target": "webgpu"})
    served: list[bool] = []
    monkeypatch.setattr(cli, "_serve_page", lambda *_: served.append(True))
    arguments = [str(tmp_path), "--port", "0", "--no-open"]
    (tmp_path / file).write_bytes(b"cut")
    assert cli.main(arguments) == 1
    error = capsys.readouterr().err
    assert f"`{file}` of `{tmp_path}`: expected 5 bytes, found 3" in error
    assert ("--draft 0" in error) == bool(options)
    (tmp_path / file).unlink()
    assert cli.main(arguments) == 1
    assert f"`{file}` is missing from `{tmp_path}`" in capsys.readouterr().err
    assert not served
    assert cli.main([*arguments, *(options or ["--check", "off"])]) == 0
    assert served


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--port", "70000"], 2, "--port: expected 0 to 65535, found 70000"),
        (["--queue", "-1"], 2, "--queue"),
        (["--allow-origin", "example.org"], 2, "--allow-origin: expected an origin"),
        (["--allow-origin", "https://example.org/chat"], 2, "--allow-origin: expected an origin"),
        (["--page", "nowhere"], 2, "--page: `nowhere` has no `index.html`"),
        (["--context-length", "0", "--port", "0"], 2, "--context-length: expected at least 1"),
        (["--allow-media-hosts", "a.example", "--port", "0"], 2, "this package takes no pictures"),
        (["--host", "256.1.1.1", "--port", "0"], 2, "cannot listen on 256.1.1.1"),
    ],
)
def test_meaningless_options_are_usage_errors(
    tiny_package: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    assert main([str(tiny_package), *arguments]) == status
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("library", ["model.so", "model.wasm"])
def test_a_port_in_use_is_found_before_the_package_is_loaded(
    library: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / library).touch()
    files.finish(tmp_path, library, {"target": "any"})
    for name in ("load_package", "_serve_page"):
        monkeypatch.setattr(cli, name, lambda *_: pytest.fail("went on"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main([str(tmp_path), "--port", str(port)]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"error: port {port} of 127.0.0.1 is in use"
    assert told[1:] == ["hint: choose another with --port, or --port 0 for a free one"]


def test_a_directory_that_is_no_package_fails_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 1
    assert "hint: " in capsys.readouterr().err


def served_without_loading(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str, library: str = "model.wasm"
) -> int:
    (folder / library).touch()
    files.finish(folder, library, {"target": "any"})

    def load(*_: object) -> None:
        raise UsageError("it is not loaded")

    monkeypatch.setattr(cli, "load_package", load)
    monkeypatch.setattr(cli, "_serve_page", lambda *_: None)
    return main([str(folder), "--port", "0", *options])


@pytest.mark.parametrize(
    ("host", "key", "warned"),
    [("0.0.0.0", None, True), ("0.0.0.0", "k", False), ("127.0.0.1", None, False)],
)
def test_a_server_that_is_open_to_all_warns(
    host: str,
    key: str | None,
    warned: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    if key is not None:
        monkeypatch.setenv(API_KEY_VARIABLE, key)
    assert served_without_loading(monkeypatch, tmp_path, "--host", host, library="model.so") == 2
    told = capsys.readouterr().err
    assert ("warning: everybody who reaches 0.0.0.0 can use this server" in told) == warned
    assert (f"hint: set the variable {API_KEY_VARIABLE}" in told) == warned


@pytest.mark.parametrize("options", [["--host", "0.0.0.0"], ["--allow-host", "*"]])
def test_a_package_for_browsers_that_is_open_to_all_is_not_told_of_a_key(
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    assert served_without_loading(monkeypatch, tmp_path, *options) == 0
    told = capsys.readouterr().err
    assert "can read the package" in told
    assert "put a proxy that asks for a password in front" in told
    assert "key" not in told
    assert API_KEY_VARIABLE not in told


def test_a_key_that_guards_no_file_of_a_package_for_browsers_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.wasm").touch()
    files.finish(tmp_path, "model.wasm", {"target": "webgpu"})
    monkeypatch.setattr(cli, "listen", lambda *_, **__: None)
    warning = f"warning: {API_KEY_VARIABLE} guards nothing here"
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    assert cli.main([str(tmp_path), "--port", "0", "--no-open"]) == 0
    assert warning not in capsys.readouterr().err
    monkeypatch.setenv(API_KEY_VARIABLE, "secret")
    assert cli.main([str(tmp_path), "--port", "0", "--no-open"]) == 0
    assert warning in capsys.readouterr().err


def test_no_process_that_the_server_starts_has_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "sesame")
    assert served_without_loading(monkeypatch, tmp_path) == 0
    assert API_KEY_VARIABLE not in os.environ


def test_a_server_that_answers_for_any_name_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    assert served_without_loading(monkeypatch, tmp_path, "--allow-host", "*") == 0
    assert "warning: every website that a browser near here opens" in capsys.readouterr().err


@pytest.mark.parametrize(
    "host", slow_unless(lambda host: host == "0.0.0.0", ["127.1", "localhost", "0.0.0.0"])
)
def test_hosts_are_checked_wherever_it_listens(tmp_path: Path, host: str) -> None:
    (tmp_path / "model.wasm").write_bytes(b"wasm")
    files.finish(tmp_path, "model.wasm", {"target": "webgpu"})
    with serving(tmp_path, "--host", host, "--allow-host", "pc.example") as address:
        port = address.rpartition(":")[2]
        for name, status in (("evil.example", 421), ("pc.example", 200), (host, 200)):
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/package/model.wasm", headers={"Host": name}
            )
            try:
                with urllib.request.urlopen(request) as response:
                    found = response.status
            except urllib.error.HTTPError as error:
                found = error.code
            assert found == status, name


@pytest.mark.parametrize("key", ["", " ", "a\n", " a", "a\x1bb"])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_key_that_nobody_can_bring_is_a_usage_error(
    key: str,
    host: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, key)
    assert served_without_loading(monkeypatch, tmp_path, "--host", host) == 2
    assert API_KEY_VARIABLE in capsys.readouterr().err

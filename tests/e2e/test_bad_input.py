"""Bad input: a one-line error with a hint, the right exit code, nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemma4_compile.cli import compile as cli
from gemma4_compile.tiny.safetensors_file import write_safetensors
from tests.models import E2B_LIKE, random_weights, write_checkpoint

PREFIX = "model.language_model."
Change = Callable[[Path], None]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A good checkpoint, for the test to spoil."""
    return write_checkpoint(tmp_path / "model", E2B_LIKE, dtype="bfloat16").path


@pytest.fixture
def refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Run the command line and check that it fails as it should."""

    def run(arguments: list[str], code: int, message: str) -> None:
        before = sorted(str(path) for path in tmp_path.rglob("*"))
        assert cli.main(arguments) == code
        captured = capsys.readouterr()
        errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1
        assert message in errors[0]
        assert captured.err.splitlines()[-1].startswith("hint: ")
        assert "Traceback" not in captured.err
        assert captured.out == ""
        assert sorted(str(path) for path in tmp_path.rglob("*")) == before

    return run


def arguments(model: Path | str, output: Path | str, *more: str) -> list[str]:
    options = ["--target", "cpu", "--quant", "q4f16", "-o", str(output)]
    return [str(model), *options, *more]


def edit_config(**changes: Any) -> Change:
    """Change keys of text_config."""

    def change(model: Path) -> None:
        path = model / "config.json"
        config = json.loads(path.read_text())
        config["text_config"].update(changes)
        path.write_text(json.dumps(config))

    return change


def write_config(content: str) -> Change:
    def change(model: Path) -> None:
        (model / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))

    return change


def remove(name: str) -> Change:
    def change(model: Path) -> None:
        (model / name).unlink()

    return change


def rename(name: str) -> Change:
    def change(model: Path) -> None:
        (model / "model.safetensors").rename(model / name)

    return change


def truncate(model: Path) -> None:
    path = model / "model.safetensors"
    os.truncate(path, path.stat().st_size - 1000)


def cut_inside_header(model: Path) -> None:
    os.truncate(model / "model.safetensors", 100)


def change_header(name: str, **changes: Any) -> Change:
    """Change a tensor's header entry without touching the data."""

    def change(model: Path) -> None:
        path = model / "model.safetensors"
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        header[name].update(changes)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])

    return change


def store_as_integers(model: Path) -> None:
    change_header(f"{PREFIX}norm.weight", dtype="I16")(model)


def without_tensor(model: Path) -> None:
    weights = random_weights(E2B_LIKE)
    del weights["layers.2.mlp.down_proj.weight"]
    tensors = {PREFIX + name: values for name, values in weights.items()}
    write_safetensors(model / "model.safetensors", tensors, "float32")


def with_extra_tensor(model: Path) -> None:
    weights = random_weights(E2B_LIKE)
    tensors = {PREFIX + name: values for name, values in weights.items()}
    tensors["head.weight"] = weights["norm.weight"]
    write_safetensors(model / "model.safetensors", tensors, "float32")


def index(weight_map: dict[str, str]) -> Change:
    def change(model: Path) -> None:
        (model / "model.safetensors").rename(model / "model-1.safetensors")
        content = json.dumps({"weight_map": weight_map})
        (model / "model.safetensors.index.json").write_text(content)

    return change


BAD_MODELS: dict[str, tuple[Change, str]] = {
    "no config": (remove("config.json"), "`config.json` is missing"),
    "corrupted config": (write_config('{"model_type": '), "`config.json` is damaged"),
    "config is no object": (write_config("[]"), "not a JSON object"),
    "config is no text": (write_config("\udcff"), "not UTF-8"),
    "empty config": (write_config("{}"), "model_type"),
    "unknown model_type": (write_config('{"model_type": "llama"}'), "'llama'"),
    "drafter": (write_config('{"model_type": "gemma4_assistant"}'), "a drafter"),
    "experts without a number": (edit_config(enable_moe_block=True), "num_experts"),
    "experts beside per-layer embeddings": (
        edit_config(
            enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=32
        ),
        "enable_moe_block",
    ),
    "more experts chosen than there are": (
        edit_config(enable_moe_block=True, num_experts=4, top_k_experts=5),
        "top_k_experts",
    ),
    "both directions": (edit_config(use_bidirectional_attention="all"), "use_bidirectional"),
    "NaN in config": (edit_config(rms_norm_eps=float("nan")), "rms_norm_eps"),
    "huge size": (edit_config(hidden_size=10**30), "hidden_size"),
    "negative size": (edit_config(num_hidden_layers=-1), "num_hidden_layers"),
    "too many layers": (edit_config(num_hidden_layers=10**9), "num_hidden_layers"),
    "width of another model": (edit_config(intermediate_size=160), "has shape ("),
    "no weights": (remove("model.safetensors"), "has no weights"),
    "pickle": (rename("pytorch_model.bin"), "only safetensors"),
    "truncated file": (truncate, "`model.safetensors` is truncated"),
    "cut inside the header": (cut_inside_header, "truncated"),
    "wrong dtype": (store_as_integers, "has dtype I16"),
    "wrong shape": (
        change_header(f"{PREFIX}norm.weight", shape=[48, 2]),
        "has shape (48, 2), expected (96,)",
    ),
    "offsets outside the file": (
        change_header(f"{PREFIX}norm.weight", data_offsets=[10**12, 10**12 + 192]),
        "overlaps another or leaves a gap",
    ),
    "missing tensor": (without_tensor, "`model.language_model.layers.2.mlp.down_proj.weight` is"),
    "extra tensor": (with_extra_tensor, "`head.weight`"),
    "missing shard": (
        index({"x": "model-2.safetensors"}),
        "shard `model-2.safetensors` is missing",
    ),
    "index that leaves the directory": (
        index({"x": "../../secret.safetensors"}),
        "not a plain file name",
    ),
    "no tokenizer": (remove("tokenizer.json"), "`tokenizer.json` is missing"),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_bad_model(name: str, model: Path, tmp_path: Path, refuse: Callable[..., None]) -> None:
    spoil, message = BAD_MODELS[name]
    spoil(model)
    refuse(arguments(model, tmp_path / "out"), 1, message)


@pytest.mark.parametrize("name", ["nowhere", "model/config.json"])
def test_wrong_directory(
    name: str, model: Path, tmp_path: Path, refuse: Callable[..., None]
) -> None:
    refuse(arguments(tmp_path / name, tmp_path / "out"), 1, name)


def test_width_that_no_group_divides(tmp_path: Path, refuse: Callable[..., None]) -> None:
    odd = {**E2B_LIKE, "intermediate_size": 144}
    path = write_checkpoint(tmp_path / "odd", odd).path
    refuse(arguments(path, tmp_path / "out"), 1, "cannot be stored as q4f16_1")


BAD_OPTIONS: dict[str, tuple[list[str], str]] = {
    "unknown target": (["--target", "toaster"], "unknown target `toaster`"),
    "unknown quantisation": (["--quant", "q2f16"], "unknown quantisation `q2f16`"),
    "limits of another target": (["--limits", "compat"], "no limits `compat`"),
    "context beyond the model": (["--context", "100000"], "--context: expected 1 to 512"),
    "negative context": (["--context", "-1"], "--context: expected 1 to 512"),
    "empty chunk": (["--prefill-chunk", "0"], "--prefill-chunk: expected 1 to 512"),
    "revision of a directory": (["--revision", "main"], "--revision"),
    "unknown option": (["--fast"], "--fast"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_option(name: str, model: Path, tmp_path: Path, refuse: Callable[..., None]) -> None:
    options, message = BAD_OPTIONS[name]
    refuse(arguments(model, tmp_path / "out", *options), 2, message)


def test_output_that_is_not_ours(model: Path, tmp_path: Path, refuse: Callable[..., None]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("x")
    refuse(arguments(model, tmp_path / "out"), 2, "no package of gemma4-compile")


def test_output_that_cannot_be_made(model: Path, refuse: Callable[..., None]) -> None:
    refuse(arguments(model, model / "config.json" / "out"), 1, "cannot write")


def test_no_space_left(
    model: Path, tmp_path: Path, refuse: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(total=10**9, used=10**9, free=0)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage)
        refuse(arguments(model, tmp_path / "out", "--only", "weights"), 1, "no space left")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        refuse(arguments(model, tmp_path / "out", "--only", "weights"), 1, "no space left")


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.0, 0.4])
def test_interruption_leaves_nothing(delay_s: float, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gemma4_compile", *arguments("tiny", tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        while line := process.stderr.readline():
            if b"compiling the model library" in line:
                time.sleep(delay_s)
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read().decode()
        assert process.wait() == 130, rest
    assert "error: interrupted" in rest.splitlines()  # TVM may log more on its way out
    assert not list(tmp_path.iterdir())

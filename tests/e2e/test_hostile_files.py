"""Files that anybody may have written: each is refused by one of our errors, or is harmless.

`tests/hostile` keeps files that were written to do harm; the fuzz targets make more of them.
FUZZ_EXAMPLES=100000 lets those run for long, each time with other values; without it they take the
same few hundred each time.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemma4_compile.checkpoint.match import Checkpoint, match
from gemma4_compile.checkpoint.safetensors_file import read_header
from gemma4_compile.checkpoint.suppressed_tokens import suppressed_tokens
from gemma4_compile.cli import compile as cli
from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import Gemma4CompileError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text.layer_plan import layer_plans
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.package.artifacts import ChatConfig, Provenance, TensorCache
from gemma4_compile.package.conversation import chat_template_config
from gemma4_compile.tiny.safetensors_file import write_safetensors
from tests import models
from tests.marks import slow_unless
from tests.packages import Silent

CORPUS = Path(__file__).parents[1] / "hostile"
PLACES = {
    "header": "model.safetensors",
    "config": "config.json",
    "index": "model.safetensors.index.json",
    "template": "chat_template.jinja",
    "tokenizer": "tokenizer.json",
    "generation_config": "generation_config.json",
}
LONG = "FUZZ_EXAMPLES" in os.environ
fuzz = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "250")),
    derandomize=not LONG,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write_checkpoint(tmp_path_factory.mktemp("good") / "model", models.E2B_LIKE).path


def corpus() -> list[Path]:
    return sorted(path for kind in PLACES for path in (CORPUS / kind).iterdir())


# Until their time is over, ten seconds each.
SLOW_FILES = ("text-that-doubles.json", "endless-loops.jinja")


@pytest.mark.parametrize(
    "path",
    slow_unless(lambda path: path.name not in SLOW_FILES, corpus()),
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_hostile_file_is_refused(
    path: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = shutil.copytree(checkpoint, tmp_path / "model")
    if path.parent.name == "index":
        (model / "model.safetensors").rename(model / "model-1.safetensors")
    shutil.copyfile(path, model / PLACES[path.parent.name])
    output = tmp_path / "out"
    options = ["--target", "cpu", "--quant", "q4f16", "--only", "weights", "-o", str(output)]
    assert cli.main([str(model), *options]) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "internal error" not in errors[0]
    assert len(errors[0]) < 5000
    assert errors[0].isprintable()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["model"]


# --- fuzz targets -------------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([0, 1, -1, 2, 32, 255, 256, 2**31, 2**32, 2**63, 10**99, 1e308, -0.0])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", "F32", "gemma4", "../x", "\ud800", "\x1b[2J", "full_attention"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a JSON value; of long lists and tables only the first items."""
    yield path
    if isinstance(value, dict):
        for key in list(value)[:40]:
            yield from paths(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(min(len(value), 3)):
            yield from paths(value[index], (*path, index))


@st.composite
def changed(draw: st.DrawFn, good: Any) -> Any:
    """A good JSON value with one to three places replaced, removed or added."""
    value = json.loads(json.dumps(good))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(paths(value))))
        if not path:
            if draw(st.integers(0, 9)) == 0:
                return draw(VALUES)
            continue
        place = value
        for key in path[:-1]:
            place = place[key]
        action = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if action == "replace":
            place[path[-1]] = draw(VALUES)
        elif action == "remove":
            del place[path[-1]]
        elif isinstance(place, dict):
            place[draw(st.text(max_size=6))] = draw(VALUES)
        else:
            place.append(draw(VALUES))
    return value


@contextmanager
def only_our_errors() -> Iterator[None]:
    """Let our errors pass; each must be text that can be printed."""
    try:
        yield
    except Gemma4CompileError as error:
        str(error).encode("utf-8")


GOOD_CONFIG = models.config_file(models.MOE_LIKE, "hub", "bfloat16")
GOOD_LATER_CONFIG = models.config_file(models.E2B_LIKE, "transformers", "bfloat16")


@pytest.mark.slow
@fuzz
@given(changed(GOOD_CONFIG) | changed(GOOD_LATER_CONFIG))
def test_fuzz_config(values: Any) -> None:
    with only_our_errors():
        config = Gemma4Config.from_dict(values)
        plans = layer_plans(config)
        assert len(plans) == config.num_hidden_layers
        if config.num_hidden_layers * config.num_experts < 10_000:
            assert parameter_table(config)


def header_bytes(header: Any, data_bytes: int) -> bytes:
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return len(text).to_bytes(8, "little") + text + bytes(data_bytes)


GOOD_HEADER = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "c": {"dtype": "F16", "shape": [], "data_offsets": [32, 34]},
}


@st.composite
def spliced(draw: st.DrawFn) -> bytes:
    """The bytes of a good file with some cut out, put in or changed."""
    data = bytearray(header_bytes(GOOD_HEADER, 34))
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(data)))
        end = draw(st.integers(begin, min(len(data), begin + 12)))
        data[begin:end] = draw(st.binary(max_size=12))
    return bytes(data)


@fuzz
@given(
    st.binary(max_size=64)
    | spliced()
    | st.builds(header_bytes, changed(GOOD_HEADER), st.sampled_from([34, 33, 35, 0]))
)
def test_fuzz_header(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.safetensors")
        path.write_bytes(data)
        with only_our_errors():
            tensors = read_header(path)
            # What was taken covers the data exactly, each byte once.
            places = sorted((t.offset_bytes, t.offset_bytes + t.nbytes) for t in tensors.values())
            assert all(0 < begin <= end <= len(data) for begin, end in places)
            assert all(a[1] <= b[0] for a, b in pairwise(places))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    (folder / "config.json").write_text(json.dumps(GOOD_CONFIG))
    for name in ("a", "b"):
        tensors = {name: np.zeros(2, np.float32)}
        write_safetensors(folder / f"model-{name}.safetensors", tensors, "float32")
    return folder


GOOD_INDEX = {"weight_map": {"a": "model-a.safetensors", "b": "model-b.safetensors"}}


@pytest.mark.slow
@fuzz
@given(changed(GOOD_INDEX))
def test_fuzz_index(sharded: Path, values: Any) -> None:
    text = json.dumps(values).encode("utf-8", "surrogatepass")
    (sharded / "model.safetensors.index.json").write_bytes(text)
    with only_our_errors():
        opened = Checkpoint.open(sharded)
        assert {t.path.parent for t in opened.tensors.values()} == {sharded}
        config = Gemma4Config.from_dict(GOOD_CONFIG)
        match(opened.tensors, config)


GOOD_GENERATION = {
    "temperature": 1.0,
    "top_k": 64,
    "top_p": 0.95,
    "do_sample": True,
    "eos_token_id": [1, 106],
    "suppress_tokens": [3],
}
GOOD_TOKENIZER = {**models.character_tokenizer()}


@pytest.mark.slow
@fuzz
@given(changed(GOOD_TOKENIZER) | st.just(GOOD_TOKENIZER), changed(GOOD_GENERATION))
def test_fuzz_tokenizer_and_generation_config(
    sharded: Path, tokenizer: Any, generation: Any
) -> None:
    for name, values in (("tokenizer.json", tokenizer), ("generation_config.json", generation)):
        (sharded / name).write_bytes(json.dumps(values).encode("utf-8", "surrogatepass"))
    (sharded / "model.safetensors.index.json").write_text(json.dumps(GOOD_INDEX))
    with only_our_errors():
        opened = Checkpoint.open(sharded)
        suppressed_tokens(opened.generation_config, 256)
        chat = chat_template_config(
            vocab_size=256,
            bos_token_id=2,
            eos_token_ids=[1],
            tokenizer=opened.tokenizer(256)[0],
            generation_config=opened.generation_config,
            form=None,
        )
        json.dumps(chat, allow_nan=False)  # the client's JSON knows no NaN


@pytest.fixture(scope="module")
def package_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("package")
    request = CompileRequest("tiny", "cpu", "q4f16", folder / "out", only="weights")
    compile_model(request, Silent())
    return {path.name: json.loads(path.read_text()) for path in folder.glob("out/*.json")}


READERS: dict[str, Callable[[Any], Any]] = {
    "provenance.json": Provenance.from_json,
    "tensor-cache.json": TensorCache.from_json,
    "mlc-chat-config.json": ChatConfig.from_json,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
@fuzz
@given(data=st.data())
def test_fuzz_package(name: str, package_files: dict[str, Any], data: st.DataObject) -> None:
    values = data.draw(changed(package_files[name]))
    if isinstance(values, dict):  # as `read_artifact` sees to
        with only_our_errors():
            READERS[name](values)

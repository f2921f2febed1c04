"""Whether a package fits a device, asked of devices and hubs that are made up."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_compile import abi
from gemma4_compile.device_kinds import BROWSER
from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.artifacts import Shard, TensorCache, TensorRecord
from gemma4_compile.package.libraries import LibraryRecord
from gemma4_compile.runtime import serve as serve_cli
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.package import room
from gemma4_compile.runtime.package.hub_package import fetch_package
from gemma4_compile.runtime.package.hub_snapshot import needed_files
from gemma4_compile.runtime.package.room import (
    MemoryNeed,
    Placement,
    Wish,
    check_download,
    check_fits,
    memory_need,
    unused_bytes,
)
from tests.hub_server import MODEL, HubServer, serve

GB = 10**9
COMPILED = 8192
SIZES = {
    "weights_bytes": 3 * GB,
    "kv_sliding_bytes": GB // 10,
    "kv_full_bytes": GB,
    "activation_bytes": GB // 5,
}
WEIGHTS = {
    "embed_tokens.weight": 100,
    "embed_tokens_per_layer.weight": 40,
    "embed_tokens_per_layer.weight.1": 4,
    "layers.0.experts.gate_up.weight": 20,
    "layers.0.mlp.weight": 12,
}


@dataclass(frozen=True)
class Made(Device):
    """A device with so much memory free."""

    free: int | None = None

    def free_bytes(self) -> int | None:
        return self.free

    def describe(self) -> str:
        return f"a made up {self.name}"


def library(device: str = "cuda", **sizes: int) -> LibraryRecord:
    return LibraryRecord(
        f"model-{device}.so", device, device, device, "default", "float", None, {**SIZES, **sizes}
    )


def cache() -> TensorCache:
    records = tuple(TensorRecord(name, (words,), "float32", 0) for name, words in WEIGHTS.items())
    return TensorCache((Shard("params_shard_0.bin", 400, "", records),), 1)


@pytest.mark.parametrize(
    ("device", "placement", "elsewhere"),
    [
        ("cuda", Placement(), 44 + 20),
        ("cuda", Placement(ple="host"), 44 + 20),
        ("cuda", Placement(ple="gpu"), 20),
        ("cuda", Placement(ple="gpu", experts=1.0), 0),
        ("cuda", Placement(experts=0.5), 44 + 10),
        ("cuda", Placement(experts=0.5, expert_cache=16), 44 + 6),
        ("cuda", Placement(experts=0.5, expert_cache=999), 44),
        ("metal", Placement(), 44),
        ("cpu", Placement(), 44),
    ],
)
def test_what_can_lie_elsewhere_is_not_counted(
    device: str, placement: Placement, elsewhere: int
) -> None:
    found = memory_need(library(device), cache(), COMPILED, Made(device), placement, 7)
    fixed = 3 * GB + GB // 10 + GB // 5 - 4 * elsewhere + 7
    assert found == MemoryNeed(fixed, GB, COMPILED, rings=GB // 10)


def test_each_sequence_has_keys_and_values_of_its_own() -> None:
    of_one, of_four = (
        memory_need(library(), cache(), COMPILED, Made("cuda"), Placement(), 0, sequences)
        for sequences in (1, 4)
    )
    assert of_one is not None
    assert of_four is not None
    for length in (0, 512, COMPILED):
        own = GB // 10 + GB * length / COMPILED
        assert of_four.at(length) - of_one.at(length) == pytest.approx(3 * own, abs=2)
    with pytest.raises(ArtifactError, match="8192 tokens of context for each of 4 sequences"):
        check_fits("p", of_four, Made("cuda", of_one.at(COMPILED)))


@pytest.mark.parametrize(
    ("free", "context", "hint"),
    [
        # All have 3.2 GB, each 0.1 GB beside, and 1 GB in the whole context.
        (6 * GB, None, "--context-length 6656 or --slots 2 fits; "),
        (3_600_000_000, 512, "--context-length 256 or --slots 2 fits; "),
        (3_450_000_000, None, "--slots 1 --context-length 1024 fits; "),
        (3 * GB, 256, "its weights alone take 3.30 GB: "),
    ],
)
def test_a_refusal_says_how_many_sequences_would_fit(
    free: int, context: int | None, hint: str
) -> None:
    places, device = Placement(ple="gpu", experts=1.0), Made("cuda", free)
    need = memory_need(library(), cache(), COMPILED, device, places, 0, 3)
    assert need is not None
    with pytest.raises(ArtifactError, match="for each of 3 sequences") as refused:
        check_fits("p", need, device, context)
    assert (refused.value.hint or "").startswith(hint)
    for count in (1, 2, 3):
        assert need.of(count) == memory_need(library(), cache(), COMPILED, device, places, 0, count)


def test_a_library_of_an_earlier_version_is_not_judged() -> None:
    old = library("cuda", **dict.fromkeys(SIZES, 0))
    assert memory_need(old, cache(), COMPILED, Made("cuda"), Placement()) is None


def test_a_shorter_context_leaves_keys_and_values_unused() -> None:
    own = library("cuda")
    assert unused_bytes(own, COMPILED, COMPILED) == 0
    assert unused_bytes(own, COMPILED, COMPILED // 4) == 3 * GB // 4
    assert unused_bytes(None, COMPILED, 1) == 0


@given(
    fixed=st.integers(0, 10**10),
    growing=st.integers(0, 10**10),
    compiled=st.integers(1, 131072),
    free=st.integers(0, 3 * 10**10),
)
def test_the_longest_context_is_the_longest(
    fixed: int, growing: int, compiled: int, free: int
) -> None:
    need = MemoryNeed(fixed, growing, compiled)
    longest = need.longest(free)
    if longest is None:
        assert need.at(min(256, compiled)) > free
        return
    assert need.at(longest) <= free
    assert longest == compiled or (longest % 256 == 0 and need.at(longest + 256) > free)


@pytest.mark.parametrize(
    ("free", "context", "hint"),
    [
        (4 * GB, None, "--context-length 5632 fits; or close"),
        (2 * GB, None, "its weights alone take 3.30 GB: .* --fit 2000MB` chooses"),
        (2 * GB, 256, "its weights alone take 3.30 GB"),
    ],
)
def test_a_refusal_says_what_would_fit(free: int, context: int | None, hint: str) -> None:
    need = MemoryNeed(3_300_000_000, GB, COMPILED)
    with pytest.raises(ArtifactError, match=r"`p` does not fit .* a made up cuda") as refused:
        check_fits("p", need, Made("cuda", free), context)
    assert refused.value.hint is not None
    assert re.search(hint, refused.value.hint)
    assert f"found {free / GB:.2f} GB free" in str(refused.value)


@pytest.mark.parametrize(
    ("free", "context", "switch"),
    [(4_300_000_000, None, "1"), (None, None, "1"), (4 * GB, 4096, "1"), (0, None, "0")],
)
def test_what_fits_or_is_not_known_is_loaded(
    free: int | None, context: int | None, switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(room.SWITCH, switch)
    check_fits("p", MemoryNeed(3_300_000_000, GB, COMPILED), Made("cuda", free), context)


def test_of_the_cpu_what_the_process_may_have_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "available_bytes", lambda: 5)
    with pytest.raises(ArtifactError, match=r"found 0\.0 MB free"):
        check_fits("p", MemoryNeed(6, 0, COMPILED), Made("cpu", None))


def files_of(*devices: str) -> dict[str, bytes | int]:
    chat = {
        "model_type": "gemma4",
        "quantization": "q4f16",
        "vocab_size": 8,
        "context_window_size": COMPILED,
        "prefill_chunk_size": 8,
        "tokenizer_files": [],
        "conv_template": {},
    }
    files = {
        "params_shard_0.bin": bytes(720),
        "a.bin": bytes(8),
        abi.CHAT_CONFIG_FILE: json.dumps(chat).encode(),
        abi.TENSOR_CACHE_FILE: json.dumps(_offset_cache().to_json()).encode(),
        **{library(one).file: b"a library" for one in devices},
    }
    values = {
        "schema": "gemma4_compile.package",
        "schema_version": 1,
        "library": library(devices[0]).file,
        "libraries": [library(one).to_json() for one in devices],
        "build": {},
        "files": {
            name: {"nbytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in files.items()
        },
    }
    return {**files, abi.PROVENANCE_FILE: json.dumps(values).encode()}


def _offset_cache() -> TensorCache:
    records, begin = [], 0
    for name, words in WEIGHTS.items():
        records.append(TensorRecord(name, (words,), "float32", begin))
        begin += 4 * words
    return TensorCache((Shard("params_shard_0.bin", begin, "", tuple(records)),), 1)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with serve(files_of("cuda", "cpu")) as hub:
        hub.use(monkeypatch, tmp_path / "cache")
        yield hub


@pytest.mark.parametrize(
    ("wish", "free", "refused"),
    [
        (Wish(), {"cuda": 2 * GB, "cpu": 9 * GB}, "--device cpu, which has room"),
        (Wish(), {"cuda": 4 * GB, "cpu": 2 * GB}, "--context-length"),
        (Wish(device="cpu"), {"cuda": 9 * GB, "cpu": GB}, "its weights alone"),
        (Wish(context_length=512), {"cuda": 4 * GB}, None),
        (Wish(sequences=4), {"cuda": 5 * GB}, "--context-length"),
        (Wish(), {"cuda": 9 * GB}, None),
        (Wish(device="metal"), {}, None),
    ],
)
def test_what_would_not_fit_is_refused_before_its_weights_are_fetched(
    hub: HubServer,
    wish: Wish,
    free: dict[str, int],
    refused: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def open_device(name: str) -> Device:
        if name not in free:
            raise ArtifactError(f"no {name}", hint="none")
        return Made(name, free[name])

    def admit(directory: Path, provenance: Any) -> None:
        check_download(MODEL, directory, provenance, wish, open_device)

    monkeypatch.setattr(room, "available_bytes", lambda: free.get("cpu"))
    wanted = partial(needed_files, drafter=True, system="linux")
    if refused is None:
        fetch_package(MODEL, None, wanted, admit=admit)
        return
    with pytest.raises(ArtifactError, match="does not fit the memory") as error:
        fetch_package(MODEL, None, wanted, admit=admit)
    assert refused in str(error.value.hint)
    fetched = [each for each in hub.asked if each.startswith("GET ") and "/resolve/" in each]
    assert {each.rsplit("/", 1)[-1] for each in fetched} == {
        abi.PROVENANCE_FILE,
        *room.DESCRIPTIONS,
    }


@pytest.mark.parametrize("devices", [("cpu",), ("cpu", BROWSER)])
def test_a_server_asks_before_it_fetches(
    devices: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(room, "available_bytes", lambda: GB)
    with serve(files_of(*devices)) as hub:
        hub.use(monkeypatch, tmp_path / "cache")
        assert serve_cli.main([MODEL, "--port", "0"]) == 1
    told = capsys.readouterr().err
    assert "does not fit the memory" in told
    assert "--fit 1000MB" in told
    assert (f"--device {BROWSER}" in told) == (BROWSER in devices)
    assert not [each for each in hub.asked if "params_shard" in each and "/resolve/" in each]


def test_a_server_asks_for_all_of_its_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(room, "available_bytes", lambda: 5 * GB)  # one slot needs 4.3
    with serve(files_of("cpu")) as hub:
        hub.use(monkeypatch, tmp_path / "cache")
        assert serve_cli.main([MODEL, "--port", "0", "--slots", "8"]) == 1
    told = capsys.readouterr().err
    assert "8192 tokens of context for each of 8 sequences" in told
    assert "--slots 1 fits" in told
    assert not [each for each in hub.asked if "params_shard" in each and "/resolve/" in each]

import gzip
from pathlib import Path

import pytest

from gemma4_compile.errors import TargetError
from gemma4_compile.system.cache_folder import cache_folder
from gemma4_compile.targets import link, target_spec, webgpu
from gemma4_compile.targets.linker.wasm_file import MAGIC, read_interface
from tests.unit.targets.kv_library import CacheOfLayer, RotaryKind, build

LAYERS = (CacheOfLayer(1, 4), CacheOfLayer(2, 6, rows=12, window=8))
ROTARY = (RotaryKind(4, 2, 1e4),)
SPEC = target_spec("webgpu")

LOOKED_UP_BY_NAME = (
    "ffi.Array",
    "ffi.ArrayGetItem",
    "ffi.ArraySize",
    "ffi.FunctionListGlobalNamesFunctor",
    "ffi.ModuleGetFunction",
    "ffi.ModuleImportModule",
    "ffi.Shape",
    "ffi.SystemLib",
    "runtime.TVMTensorAllocWithScope",
    "runtime.TVMTensorCopyFromTo",
    "runtime.TVMTensorCreateView",
    "tvmjs.array.decode_storage",
    "tvmjs.runtime.ArrayConcat",
    "tvmjs.runtime.ConcatEmbeddings",
    "tvmjs.runtime.TensorCopyFromBytes",
    "tvmjs.runtime.TensorCopyToBytes",
    "vm.builtin.apply_presence_and_frequency_penalty",
    "vm.builtin.apply_repetition_penalty",
    "vm.builtin.apply_softmax_with_temperature",
    "vm.builtin.attention_kv_cache_enable_sliding_window_for_seq",
    "vm.builtin.attention_kv_cache_export_page_group",
    "vm.builtin.attention_kv_cache_finish_import",
    "vm.builtin.attention_kv_cache_get_checkpoint_metadata",
    "vm.builtin.attention_kv_cache_get_sequence_length",
    "vm.builtin.attention_kv_cache_import_page_group",
    "vm.builtin.attention_kv_cache_prepare_import",
    "vm.builtin.kv_state_add_sequence",
    "vm.builtin.kv_state_begin_forward",
    "vm.builtin.kv_state_clear",
    "vm.builtin.kv_state_end_forward",
    "vm.builtin.kv_state_remove_sequence",
    "vm.builtin.param_module_from_cache",
    "vm.builtin.param_module_from_cache_by_name",
    "vm.builtin.sample_top_p_from_logits",
    "vm.builtin.sample_top_p_from_prob",
    "vm.builtin.tensor_cache.clear",
    "vm.builtin.tensor_cache.get",
    "vm.builtin.tensor_cache.remove",
    "vm.builtin.tensor_cache.update",
    "wasm.LocalSession",
)
"""Global functions of `getGlobalFunc` in the client's `lib/index.js`, but for its RPC server's."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "model.wasm"
    link(build(SPEC, LAYERS, ROTARY), path, SPEC)
    return path


def test_imports_only_what_the_client_offers(library: Path) -> None:
    assert set(read_interface(library).imports) <= webgpu.CLIENT_OFFERS


def test_exports_what_the_client_calls_and_little_else(library: Path) -> None:
    exports = set(read_interface(library).exports)
    assert exports == {"memory", "_initialize", *webgpu.CLIENT_CALLS, *webgpu.DRIVER_CALLS}


def test_holds_every_function_that_the_client_looks_up(library: Path) -> None:
    content = library.read_bytes()
    assert [name for name in LOOKED_UP_BY_NAME if name.encode() not in content] == []


def test_runtime_is_small(library: Path) -> None:
    content = library.read_bytes()
    assert len(content) < 2.2e6
    assert len(gzip.compress(content)) < 0.42e6


def test_same_bytes_twice_and_no_path(library: Path, tmp_path: Path) -> None:
    again = tmp_path / "model.wasm"
    link(build(SPEC, LAYERS, ROTARY), again, SPEC)
    content = again.read_bytes()
    assert content == library.read_bytes()
    for path in (tmp_path, cache_folder(), Path.home()):
        assert f"{path}/".encode() not in content


def test_import_that_the_client_lacks_is_named(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers = webgpu.CLIENT_OFFERS - {"env.TVMFFIWasmSafeCall", "wasi_snapshot_preview1.fd_seek"}
    monkeypatch.setattr(webgpu, "CLIENT_OFFERS", offers)
    expected = r"not offer: env\.TVMFFIWasmSafeCall, wasi_snapshot_preview1\.fd_seek"
    with pytest.raises(TargetError, match=expected):
        webgpu.check_interface(library)


def test_missing_export_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.wasm"
    path.write_bytes(MAGIC)
    with pytest.raises(TargetError, match="lacks what the WebLLM client calls: TVMFFIAnyView"):
        webgpu.check_interface(path)


def test_refused_library_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webgpu, "CLIENT_OFFERS", frozenset())
    with pytest.raises(TargetError, match="proc_exit"):
        link(build(SPEC, LAYERS, ROTARY), tmp_path / "model.wasm", SPEC)
    assert list(tmp_path.iterdir()) == []


def test_spec_of_another_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="cpu"):
        webgpu.link(build(SPEC, LAYERS, ROTARY), tmp_path / "model.wasm", target_spec("cpu"))

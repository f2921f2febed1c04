"""Fixtures that several folders of tests share."""

from __future__ import annotations

import gc
import hashlib
import signal
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.shared import made_once, shared_folder

if TYPE_CHECKING:
    from gemma4_compile.confined.conversation import Trial
    from tests.web.compiled import Compiler

# A machine that is busy with other work fails no test: what is random stays as it is by default.
settings.register_profile(
    "any speed", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any speed")


@pytest.fixture(scope="session")
def tiny_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny`, compiled for `cpu` in f32 with a context of 256 tokens."""
    from tests import packages  # loads the compiler, which many tests do not need

    def make(folder: Path) -> None:
        packages.compile_package("tiny", "f32", folder, context_length=256)

    return made_once(shared_folder(tmp_path_factory) / "tiny-f32-256", make)


@pytest.fixture(scope="session", autouse=True)
def _conversations_tried_once() -> Iterator[None]:
    """Compilations in this process try a tokenizer and a template once, if they hold.

    Nearly all tests compile with the same ones, and a process for each takes a tenth of a small
    compilation. `tests/unit/confined` has its own tries.
    """
    from gemma4_compile.checkpoint import chat_files
    from gemma4_compile.confined.conversation import try_conversation as try_anew

    held: dict[tuple[object, ...], Trial] = {}

    def try_once(
        tokenizer: Path,
        template: str | None,
        special_tokens: Mapping[str, str],
        vocab_size: int,
        tool_use: str | None = None,
    ) -> Trial:
        if not tokenizer.is_file():
            return try_anew(tokenizer, template, special_tokens, vocab_size, tool_use)
        content = hashlib.sha256(tokenizer.read_bytes()).digest()
        others = (template, *sorted(special_tokens.items()), vocab_size, tool_use)
        if (content, others) not in held:
            found = try_anew(tokenizer, template, special_tokens, vocab_size, tool_use)
            held[content, others] = found
        return held[content, others]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat_files, "try_conversation", try_once)
        yield


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    """Compiles a model for a target in a recipe, once a run."""
    from tests.web.compiled import Compiler

    return Compiler(shared_folder(tmp_path_factory) / "packages")


# Each takes 25 seconds or more: begun last, one would keep a process busy and the others waiting.
# Longest first, without cached shaders; browsers and other work in turn. `--durations=0` measures.
LONGEST = (
    "web/test_drafts.py",
    "metal/test_kernels.py",
    "web/test_page.py",
    "metal/test_tensor_cores.py",
    "web/test_fast.py",
    "web/test_dawn.py",
    "web/test_libraries.py",
    "web/test_firefox.py",
    "web/test_naga.py",
    "unit/verification/test_media.py",
    "web/test_verification.py",
    "parity/test_media.py",
    "web/test_media.py",
    "e2e/test_media.py",
    "web/test_divided_keys.py",
    "parity/test_mistakes.py",
    "web/test_bundlers.py",
    "web/test_benchmark.py",
    "e2e/test_faults.py",
    "web/test_minimal.py",
    "parity/test_recipes.py",
    "metal/test_tiles.py",
    "web/test_known_answers.py",
    "e2e/test_reproducible.py",
    "web/test_tiny_answers.py",
    "web/test_extension.py",
    "web/test_choose.py",
    "unit/compile/test_dump.py",
    "numerics/test_cuda.py",
    "web/test_offline.py",
    "metal/test_simdgroup_attention.py",
    "web/test_resume.py",
    "e2e/test_tiny_answers.py",
    "web/test_browser_benchmark.py",
    "passes/test_full_size.py",
    "numerics/linear/test_int8_kernels.py",
    "numerics/test_kernels.py",
    "web/test_fast_module.py",
    "parity/test_drafted_replies.py",
    "web/test_subgroup_matrices.py",
    "e2e/test_drafts.py",
    "web/test_webllm.py",
    "web/test_gemma3n.py",
    "parity/test_float32.py",
    "web/test_row_window.py",
    "parity/test_audio_rows.py",
    "e2e/test_cuda.py",
    "numerics/attention/test_attention_kernels.py",
    "parity/test_media_mistakes.py",
    "metal/test_drafts.py",
    "unit/verification/test_drafter.py",
    "numerics/attention/test_few_row_attention.py",
    "parity/test_vision.py",
    "numerics/moe/test_expert_kernels.py",
    "unit/quantization/test_scheme.py",
    "unit/compile/test_pipeline.py",
    "parity/test_untied_head.py",
    "unit/tools/training/test_media_training.py",
    "unit/test_kernels.py",
    "unit/checkpoint/test_hub_served.py",
    "parity/test_gemma3n.py",
    "unit/targets/linker/test_runtime_objects.py",
    "metal/test_warpgroups.py",
    "unit/compile/test_library_build.py",
    "e2e/test_tiny_media.py",
    "parity/test_phones.py",
    "metal/test_simdgroups.py",
    "numerics/attention/test_joint_attention.py",
    "numerics/attention/test_divided_keys.py",
    "parity/test_int8.py",
    "numerics/linear/test_subgroup_matrix_chunk.py",
    "smoke/test_presets.py",
    "unit/targets/test_target.py",
    "e2e/test_hostile_files.py",
    "numerics/attention/test_shared_rows.py",
    "e2e/test_tiny_drafter.py",
    "metal/test_tensor_package.py",
    "parity/test_phone_drafts.py",
    "parity/test_encoder.py",
    "unit/verification/test_numerics_report.py",
    "parity/test_adapters.py",
    "metal/test_gemma3n.py",
    "numerics/linear/test_static_rounding.py",
    "e2e/test_conversion_at_scale.py",
    "numerics/attention/test_subgroup_matrix_prompts.py",
    "parity/test_head_dims.py",
    "numerics/attention/test_picture_attention_kernels.py",
    "unit/planning/test_plan.py",
    "cuda/test_round_steps.py",
    "parity/test_padded_rows.py",
    "unit/media/test_decode.py",
    "metal/test_tensor_operations.py",
    "unit/media/test_sound_track.py",
    "numerics/drafting/test_drafting_kernels.py",
    "metal/test_tiny.py",
    "unit/test_untied_packages.py",
    "cuda/test_cuda_runtime.py",
    "parity/test_drafter.py",
    "parity/test_divided_keys.py",
    "cuda/test_expert_cache.py",
    "e2e/test_hub_faults.py",
    "metal/test_released_size.py",
    "unit/runtime/check/test_kernel_check.py",
    "metal/test_launcher.py",
    "unit/compile/test_compilation.py",
    "unit/cli/test_verify.py",
    "parity/test_experts.py",
    "unit/verification/test_fit.py",
    "unit/confined/test_conversation.py",
    "unit/runtime/server/test_connections.py",
    "numerics/moe/test_few_row_experts.py",
    "numerics/linear/test_bounded_kernels.py",
    "unit/calibration/test_calibrate.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector what is there until the end: all modules and all tests.

    It went through these millions of objects over and over: a seventh of the time of collecting
    tests, and a tenth of that of running small ones.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; within a file, and after them, the order stays."""
    ranks = {Path(__file__).parent / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(LONGEST)))


def pytest_configure() -> None:
    """Processes that tests start must hear Ctrl-C, even if this one was started to ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Long bytes are named by their number: an encoder may write the time of day into a file.

    Workers must collect the same names.
    """
    return f"{len(val)} bytes" if isinstance(val, bytes) and len(val) > 32 else None

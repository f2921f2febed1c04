"""Memory of a draft: one position, and all of its candidates."""

from __future__ import annotations

from dataclasses import replace

from gemma4_compile.model_spec.drafter.memory import activation_memory
from tests.unit.model_spec.drafter.test_parameters import drafted


def test_a_clustered_head_has_logits_of_its_candidates_and_no_rows() -> None:
    memory = activation_memory(drafted("e2b"), "float32")
    assert memory.positions == 1
    assert 4 * 64 in memory.tensors  # candidates
    assert 4 * 64 * 32 not in memory.tensors  # candidates x hidden


def test_a_dense_head_has_logits_of_the_vocabulary() -> None:
    assert 4 * 256 in activation_memory(drafted("moe"), "float16").tensors


def test_without_a_drafter_there_is_none() -> None:
    config = replace(drafted("moe"), drafter=None)
    assert activation_memory(config, "float32").tensors == ()

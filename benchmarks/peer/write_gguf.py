"""Writes a GGUF file with the tensors of a released size and made-up values, for llama.cpp.

Matrices are Q4_0, both embeddings included; the projection to the per-layer embeddings is float16,
which llama.cpp's own quantiser leaves alone, the router float32, vectors float32. There is no
vocabulary, only its size: `llama-bench` draws token numbers. A model with these weights computes
finite numbers; it writes nothing of sense. Needs numpy, and of the package only what reads configs.

Names, metadata and shapes are those that llama.cpp 0.5.0 reads for its architecture `gemma4`.
"""

from __future__ import annotations

import argparse
import struct
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config, preset_names
from gemma4_compile.model_spec.layers.plan import LayerPlan
from gemma4_compile.model_spec.text.layer_plan import layer_plans
from gemma4_compile.system.files import write_at

MAGIC, VERSION, ALIGNMENT = b"GGUF", 3, 32
MOSTLY_Q4_0 = 2  # general.file_type
POOL_BLOCKS = 1_048_573  # a prime, so that tensors begin at ever new places of the pool
UNROTATED = 1e30  # a divisor of the frequency, for a pair of channels that is not rotated
_THREADS = 8

Metadata = dict[str, "bool | int | float | str | list[bool] | list[int] | list[float]"]


class Kind(Enum):
    """Storage of a tensor: ggml's number of the type, elements and bytes of a block."""

    F32 = (0, 1, 4)
    F16 = (1, 1, 2)
    Q4_0 = (2, 32, 18)

    def nbytes(self, elements: int) -> int:
        """Bytes of so many elements, a multiple of the block's."""
        return elements // self.value[1] * int(self.value[2])


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file.

    Attributes
    ----------
    shape : fastest axis first, as ggml has it: (inputs, outputs) of a matrix
    values : of a vector; None where the pool of its kind has them
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    values: tuple[float, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Its size in the file, without the padding after it."""
        return self.kind.nbytes(prod(self.shape))


def matrix(name: str, *shape: int, kind: Kind = Kind.Q4_0) -> Tensor:
    """A weight of values from a pool."""
    return Tensor(f"{name}.weight", kind, shape)


def ones(name: str, size: int) -> Tensor:
    """A vector of ones."""
    return Tensor(name, Kind.F32, (size,), (1.0,) * size)


def _experts(prefix: str, config: Gemma4Config) -> Iterator[Tensor]:
    hidden, experts, width = config.hidden_size, config.num_experts, config.moe_intermediate_size
    yield matrix(f"{prefix}.ffn_gate_inp", hidden, experts, kind=Kind.F32)
    yield ones(f"{prefix}.ffn_gate_inp.scale", hidden)
    for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
        yield ones(f"{prefix}.{name}.weight", hidden)
    yield matrix(f"{prefix}.ffn_gate_up_exps", hidden, 2 * width, experts)
    yield matrix(f"{prefix}.ffn_down_exps", width, hidden, experts)
    yield ones(f"{prefix}.ffn_down_exps.scale", experts)


def _layer(plan: LayerPlan, config: Gemma4Config) -> Iterator[Tensor]:
    prefix, hidden, width = f"blk.{plan.index}", config.hidden_size, plan.intermediate_size
    q_rows = plan.num_attention_heads * plan.head_dim
    kv_rows = plan.num_key_value_heads * plan.head_dim
    yield ones(f"{prefix}.attn_norm.weight", hidden)
    yield matrix(f"{prefix}.attn_q", hidden, q_rows)
    yield ones(f"{prefix}.attn_q_norm.weight", plan.head_dim)
    if plan.owns_kv:
        yield matrix(f"{prefix}.attn_k", hidden, kv_rows)
        yield ones(f"{prefix}.attn_k_norm.weight", plan.head_dim)
        if not plan.value_is_key:
            yield matrix(f"{prefix}.attn_v", hidden, kv_rows)
    yield matrix(f"{prefix}.attn_output", q_rows, hidden)
    for name in ("post_attention_norm", "ffn_norm", "post_ffw_norm"):
        yield ones(f"{prefix}.{name}.weight", hidden)
    yield matrix(f"{prefix}.ffn_gate", hidden, width)
    yield matrix(f"{prefix}.ffn_up", hidden, width)
    yield matrix(f"{prefix}.ffn_down", width, hidden)
    if config.num_experts:
        yield from _experts(prefix, config)
    ple = config.hidden_size_per_layer_input
    if ple:
        yield matrix(f"{prefix}.inp_gate", hidden, ple)
        yield matrix(f"{prefix}.proj", ple, hidden)
        yield ones(f"{prefix}.post_norm.weight", hidden)
    yield ones(f"{prefix}.layer_output_scale.weight", 1)


def tensors(config: Gemma4Config) -> tuple[Tensor, ...]:
    """All tensors of the model in the order of the file; the LM head is the token embedding."""
    hidden = config.hidden_size
    found = [
        matrix("token_embd", hidden, config.vocab_size),
        ones("output_norm.weight", hidden),
    ]
    width = config.hidden_size_per_layer_input * config.num_hidden_layers
    if width:
        found += [
            matrix("per_layer_token_embd", width, config.vocab_size_per_layer_input),
            matrix("per_layer_model_proj", hidden, width, kind=Kind.F16),
            ones("per_layer_proj_norm.weight", config.hidden_size_per_layer_input),
        ]
    for plan in layer_plans(config):
        if plan.kind is AttentionKind.FULL and plan.index == _first_full(config):
            found.append(rope_divisors((plan,)))
        found += _layer(plan, config)
    return tuple(found)


def rope_divisors(plans: Sequence[LayerPlan]) -> Tensor:
    """Divisors of the frequencies of the full layers' pairs of channels."""
    plan = next(plan for plan in plans if plan.kind is AttentionKind.FULL)
    pairs, rotated = plan.head_dim // 2, plan.rotary.pairs
    divisors = (1.0,) * rotated + (UNROTATED,) * (pairs - rotated)
    return Tensor("rope_freqs.weight", Kind.F32, (pairs,), divisors)


def _first_full(config: Gemma4Config) -> int:
    return config.layer_types.index(AttentionKind.FULL)


def metadata(config: Gemma4Config, name: str) -> Metadata:
    """Keys and values of the header."""
    plans = layer_plans(config)
    full, sliding = (
        next(plan.head_dim for plan in plans if plan.kind is kind)
        for kind in (AttentionKind.FULL, AttentionKind.SLIDING)
    )
    of_model: Metadata = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "block_count": config.num_hidden_layers,
        "vocab_size": config.vocab_size,
        "feed_forward_length": [plan.intermediate_size for plan in plans],
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": [plan.num_key_value_heads for plan in plans],
        "attention.key_length": full,
        "attention.value_length": full,
        "attention.key_length_swa": sliding,
        "attention.value_length_swa": sliding,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [plan.window is not None for plan in plans],
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.dimension_count": full,
        "rope.dimension_count_swa": sliding,
        "rope.freq_base": config.full_rope.rope_theta,
        "rope.freq_base_swa": config.sliding_rope.rope_theta,
    }
    if config.final_logit_softcapping is not None:
        of_model["final_logit_softcapping"] = config.final_logit_softcapping
    if config.num_experts:
        of_model["expert_count"] = config.num_experts
        of_model["expert_used_count"] = config.top_k_experts
        of_model["expert_feed_forward_length"] = config.moe_intermediate_size
    return {
        "general.architecture": "gemma4",
        "general.name": name,
        "general.file_type": MOSTLY_Q4_0,
        "general.quantization_version": 2,
        "general.alignment": ALIGNMENT,
        "tokenizer.ggml.model": "none",
        **{f"gemma4.{key}": value for key, value in of_model.items()},
    }


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _scalar(value: bool | int | float | str) -> tuple[int, bytes]:
    """The number of GGUF's type, and the bytes."""
    if isinstance(value, bool):  # before int, which it is too
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    return 8, _text(value)


def _value(value: bool | int | float | str | list[bool] | list[int] | list[float]) -> bytes:
    if not isinstance(value, list):
        number, encoded = _scalar(value)
        return struct.pack("<I", number) + encoded
    scalars = [_scalar(item) for item in value]
    head = struct.pack("<IIQ", 9, scalars[0][0], len(scalars))
    return head + b"".join(encoded for _, encoded in scalars)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def header(entries: Metadata, table: tuple[Tensor, ...]) -> bytes:
    """Everything before the first tensor's data, padding included."""
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(table), len(entries))]
    parts += [_text(key) + _value(value) for key, value in entries.items()]
    offset = 0
    for tensor in table:
        shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        parts += [_text(tensor.name), shape]
        parts.append(struct.pack("<IQ", tensor.kind.value[0], offset))
        offset += _aligned(tensor.nbytes)
    whole = b"".join(parts)
    return whole.ljust(_aligned(len(whole)), b"\0")


def pools() -> dict[Kind, npt.NDArray[np.uint8]]:
    """Values for the matrices of each kind, twice in a row: a run of half of it is one slice.

    A Q4_0 block holds sixteen bytes of two numbers (0 to 15, eight is zero) after a float16 scale;
    signs of the scales differ, so that the mean is zero. Sums over a thousand channels stay near 1.
    """
    draw = np.random.default_rng(0)
    blocks = draw.integers(0, 256, (POOL_BLOCKS, 18), np.uint8)
    scales = draw.uniform(0.004, 0.01, POOL_BLOCKS) * draw.choice([-1, 1], POOL_BLOCKS)
    blocks[:, :2] = scales.astype("<f2").view(np.uint8).reshape(POOL_BLOCKS, 2)
    normal = draw.standard_normal(POOL_BLOCKS, np.float32)
    return {
        Kind.F32: np.tile(normal.astype("<f4").view(np.uint8), 2),
        Kind.F16: np.tile((normal / 32).astype("<f2").view(np.uint8), 2),
        Kind.Q4_0: np.tile(blocks.reshape(-1), 2),
    }


def _data(tensor: Tensor, pool: npt.NDArray[np.uint8]) -> Iterator[tuple[int, memoryview]]:
    """The tensor's bytes: where each run begins, and the run."""
    if tensor.values is not None:
        yield 0, memoryview(np.array(tensor.values, "<f4").tobytes())
        return
    turn = len(pool) // 2
    begin = zlib.crc32(tensor.name.encode()) % POOL_BLOCKS * (turn // POOL_BLOCKS)
    for first in range(0, tensor.nbytes, turn):
        yield first, pool.data[begin : begin + min(turn, tensor.nbytes - first)]


def write_file(path: Path, entries: Metadata, table: tuple[Tensor, ...]) -> int:
    """Write a file; its size in bytes. Runs are written by several threads."""
    head, sources = header(entries, table), pools()
    with path.open("wb") as file, ThreadPoolExecutor(_THREADS) as threads:
        descriptor = file.fileno()
        write_at(descriptor, head, 0)
        offset, waiting = len(head), []
        for tensor in table:
            for begin, run in _data(tensor, sources[tensor.kind]):
                waiting.append(threads.submit(write_at, descriptor, run, offset + begin))
            offset += _aligned(tensor.nbytes)
        written = len(head) + sum(done.result() for done in waiting)
        expected = len(head) + sum(tensor.nbytes for tensor in table)
        if written != expected:
            raise OSError(f"{path}: {written} bytes were written, not {expected}")
        file.truncate(offset)
    return offset


def write_gguf(path: Path, config: Gemma4Config, name: str) -> int:
    """Write a decoder; its size in bytes."""
    return write_file(path, metadata(config, name), tensors(config))


def shortened(config: Gemma4Config, layers: int | None, vocabulary: int | None) -> Gemma4Config:
    """The first layers of a model with the first rows of its tables: for a trial run."""
    count = config.num_hidden_layers if layers is None else layers
    rows = config.vocab_size if vocabulary is None else vocabulary
    first_shared = config.num_hidden_layers - config.num_kv_shared_layers
    return replace(
        config,
        num_hidden_layers=count,
        num_kv_shared_layers=max(0, count - first_shared),
        layer_types=config.layer_types[:count],
        num_key_value_heads=config.num_key_value_heads[:count],
        head_dim=config.head_dim[:count],
        vocab_size=rows,
        vocab_size_per_layer_input=min(rows, config.vocab_size_per_layer_input),
    )


def main() -> None:
    """Write one file and print its size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=preset_names())
    parser.add_argument("output", type=Path)
    parser.add_argument("--layers", type=int, help="the first layers only")
    parser.add_argument("--vocabulary", type=int, help="the first rows of the tables only")
    arguments = parser.parse_args()
    config = Gemma4Config.from_preset(arguments.model)
    config = shortened(config, arguments.layers, arguments.vocabulary)
    print(f"{arguments.output}: {write_gguf(arguments.output, config, arguments.model)} bytes")


if __name__ == "__main__":
    main()

"""A component: one part of a model, from its checkpoint tensors to its exported functions.

The text decoder is one. A component is a folder of model_spec and an entry in components.py; what
reads checkpoints, plans, exports, writes packages and verifies them loops over those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm

from gemma4_compile.media.sizes import CLIENT_BLOCKS, DEFAULT_BUDGET
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.layers.attention import AttentionOptions
from gemma4_compile.model_spec.layers.kv_cache import KvLimits
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.parameters import Parameter

# Bounds of symbolic lengths: memory is planned for them, once, so that prompts of many lengths do
# not each leave buffers of their own in the client's pool.
VAR_BOUNDS_ATTR = "tir_var_upper_bound"
# The most rows of a function that is called with a few, for which a target may have other kernels.
FEW_ROWS_ATTR = "gemma4.few_rows"


@dataclass(frozen=True)
class ExportOptions:
    """Options of the exported functions besides the config.

    Attributes
    ----------
    activation_dtype : of bounded matmul inputs, K and V
    prefill_chunk : longest prefill chunk
    device_type : DLPack device type of the KV state
    suppressed : ids of tokens whose logits are MASKED
    probe : return the residual stream of the last position after every layer, too
    package : names the package in checkpoints of the KV state
    softmax_blocks : blocks of the softmax over the vocabulary
    draws_by_masses : tokens of rows are drawn by exact masses
    image_rows : blocks of a picture, at most, for which memory is planned
    client_blocks : across and down of the stock client's picture
    pads_pictures : the client gives each picture as many rows, whatever its grid
    pads_texts : the stock client calls an encoder, with texts that are padded to one length
    joins_sequences : a forward may be of a token of each of several sequences
    slots_apart : the keys and values of each are tensors of their own
    routed_dtype : of what a chunk's experts read; None for `activation_dtype`
    kv_limits : by which keys and values of full layers are in parts; None for none that are
    """

    activation_dtype: str
    prefill_chunk: int
    device_type: int
    attention: AttentionOptions
    suppressed: tuple[int, ...] = ()
    probe: bool = False
    package: str = ""
    softmax_blocks: int = 64
    draws_by_masses: bool = False
    image_rows: int = DEFAULT_BUDGET
    client_blocks: tuple[int, int] = CLIENT_BLOCKS
    pads_pictures: bool = False
    pads_texts: bool = False
    joins_sequences: bool = False
    slots_apart: bool = False
    routed_dtype: str | None = None
    kv_limits: KvLimits | None = None

    @property
    def joins_rows(self) -> bool:
        """Whether a forward may be of some tokens of each of several sequences."""
        return self.joins_sequences and not self.slots_apart


@dataclass(frozen=True)
class Exported:
    """A module of exported functions, and the names of the parameters that they take, in order."""

    module: tvm.IRModule
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class ActivationMemory:
    """Bytes of a position's activations.

    Attributes
    ----------
    tensors : of each tensor
    together : of the tensors that live at the same time, for each such set
    positions : at a time; None for those of a prefill chunk
    """

    tensors: tuple[int, ...]
    together: tuple[tuple[int, ...], ...]
    positions: int | None = None


def _all_used(name: str, config: Gemma4Config) -> bool:
    return False


@dataclass(frozen=True)
class Component:
    """One part of a model.

    Attributes
    ----------
    name : in messages
    prefixes : of its tensors in checkpoints, the usual one first; of all components' the longest
        that fits decides
    is_stripped : its sources are named without the prefix
    at_root : those of them that have no prefix in checkpoints either
    stem : what its sources' names have in front; of a component with a checkpoint of its own,
        whose parameters are a tuple and files of their own, too
    parameters : its parameter table, empty where a config has no such part; names are unique among
        all components
    export : its exported functions, which take `parameters` in order as the packed tuple
    activations : memory of a position's activations
    is_unused : whether a tensor (by its source name) is one that checkpoints may hold and nothing
        reads
    """

    name: str
    prefixes: tuple[str, ...]
    parameters: Callable[[Gemma4Config], tuple[Parameter, ...]]
    export: Callable[[Gemma4Config, Matrices, ExportOptions], Exported]
    activations: Callable[[Gemma4Config, str], ActivationMemory]
    is_unused: Callable[[str, Gemma4Config], bool] = _all_used
    is_stripped: bool = False
    at_root: frozenset[str] = frozenset()
    stem: str = ""

    def source_name(self, tensor: str, prefix: str) -> str:
        """The name of a checkpoint's tensor in the parameter table."""
        if not self.is_stripped:
            return f"{self.stem}{tensor}"
        name = tensor[len(prefix) :]
        return tensor if name in self.at_root else name

    def tensor_name(self, source: str) -> str:
        """The usual name of a source in a checkpoint."""
        if not self.is_stripped:
            return source[len(self.stem) :]
        return source if source in self.at_root else f"{self.prefixes[0]}{source}"


def model_parameters(
    config: Gemma4Config, components: Sequence[Component]
) -> tuple[Parameter, ...]:
    """The parameters of all components, in the order of the packed tuple and of the shards."""
    return tuple(
        parameter for component in components for parameter in component.parameters(config)
    )

"""The tensors of an adapter's file by what they are: factors, whole tensors, rows of an embedding.

PEFT names them after the module that it wrapped. Names with and without its front, with the name of
an adapter in them (as training leaves them) and of every wrapper are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gemma4_compile.checkpoint.kinds import MERGE_HINT
from gemma4_compile.checkpoint.safetensors_file import FLOAT_DTYPES, TensorInfo
from gemma4_compile.checkpoint.same_weights import holds_same
from gemma4_compile.checkpoint.spellings import MERGED_FRONT, WRAPPERS
from gemma4_compile.errors import CheckpointError, printable

MAX_NAME = 1024  # letters; those of Gemma 4 have a tenth
A, B = ("lora_A", "lora_embedding_A"), ("lora_B", "lora_embedding_B")
MAGNITUDE = "lora_magnitude_vector"
_ROWS = "trainable_tokens_delta"
_SAVED, _ORIGINAL, _BASE = "modules_to_save", "original_module", "base_layer"
_DEFAULT = "default"  # what PEFT calls an adapter that nobody named
_OF_TRAINING = ("trainable_tokens_original", "token_indices")


# Names of the same two matrices in files that PEFT does not read either: who writes them, a way.
_OTHER_PROGRAMS = (
    (
        re.compile(r"lora_(?:unet|te\d?|transformer)_|\.lora[_.](?:down|up)\."),
        "kohya's scripts or old diffusers",
        "convert it to PEFT's names, or train it with PEFT",
    ),
    (
        re.compile(r"\.lora_[ab](?:\.weight)?$"),
        "MLX or torchtune",
        "of MLX, merge it with `mlx_lm.fuse --dequantize`; of torchtune, give what its "
        "checkpointer writes for PEFT, adapter_model.safetensors with adapter_config.json",
    ),
    (
        re.compile(r"\.adapter\.linear_(?:in|out)\."),
        "NeMo",
        "export it with NeMo's `export_ckpt` and the target `hf-peft`",
    ),
)


def check_is_pefts(names: Iterable[str]) -> None:
    """Raise CheckpointError for names that another program gives an adapter's tensors."""
    for name in names:
        for pattern, who, hint in _OTHER_PROGRAMS:
            if len(name) <= MAX_NAME and pattern.search(name):
                raise CheckpointError(
                    f"tensor `{printable(name)}` has a name of {who}, expected those of PEFT, such "
                    f"as `...{A[0]}.weight`",
                    hint=hint,
                )


@dataclass
class Factors:
    """What one wrapped module has: two matrices, and of DoRA the magnitudes.

    Attributes
    ----------
    module : its name in the model that was trained, without what wraps it
    found : by what they are: one of A, one of B, MAGNITUDE
    """

    module: str
    found: dict[str, TensorInfo] = field(default_factory=dict)

    @property
    def is_embedding(self) -> bool:
        """Return whether an embedding table was wrapped."""
        return A[1] in self.found or B[1] in self.found

    def pair(self) -> tuple[TensorInfo, TensorInfo]:
        """A and B; CheckpointError if one is missing."""
        kind = int(self.is_embedding)
        for name in (A[kind], B[kind]):
            if name not in self.found:
                other = next(iter(self.found.values()))
                raise CheckpointError(
                    f"tensor `{printable(other.name)}` in `{other.path.name}` has no `{name}` "
                    "beside it",
                    hint="the adapter is incomplete: save it or download it again",
                )
        return self.found[A[kind]], self.found[B[kind]]


@dataclass(frozen=True)
class Whole:
    """A tensor that stands for one of the model; `is_copy` if its module was trained as a copy."""

    tensor: TensorInfo
    is_copy: bool


@dataclass(frozen=True)
class AdapterTensors:
    """An adapter's tensors: by the wrapped module, whole ones by name, rows by their embedding."""

    factors: Mapping[str, Factors]
    whole: Mapping[str, Whole]
    rows: Mapping[str, TensorInfo]

    def repeats_rows(self, tensor: TensorInfo) -> bool:
        """Return whether rows of an embedding are there for another module, too."""
        others = (other for other in self.rows.values() if other is not tensor)
        return any(holds_same(other, tensor) for other in others)


def sort_tensors(tensors: Mapping[str, TensorInfo]) -> AdapterTensors:
    """Tell an adapter's tensors apart by their names.

    Raises
    ------
    CheckpointError
        If a tensor is of another method, has no float dtype, or is there twice with two values.
    """
    factors: dict[str, Factors] = {}
    whole: dict[str, Whole] = {}
    rows: dict[str, TensorInfo] = {}
    for name, tensor in tensors.items():
        if len(name) > MAX_NAME:
            raise CheckpointError(
                f"a tensor's name in `{tensor.path.name}` is too long: {len(name)} letters, at "
                f"most {MAX_NAME}",
                hint="it is of no Gemma 4: give another adapter",
            )
        parts = [part for part in name.split(".") if part not in WRAPPERS]
        if any(part in _OF_TRAINING for part in parts) or _ORIGINAL in parts:
            continue  # what was there before
        if tensor.dtype not in FLOAT_DTYPES:
            raise CheckpointError(
                f"tensor `{printable(name)}` in `{tensor.path.name}` has dtype {tensor.dtype}, "
                f"expected one of {', '.join(FLOAT_DTYPES)}",
                hint="save the adapter in bfloat16, float16 or float32",
            )
        last = next((i for i in reversed(range(len(parts))) if parts[i].startswith("lora_")), None)
        if last is not None:
            _check_kind(parts[last:], tensor)
            module = ".".join(parts[:last])
            wrapped = factors.setdefault(module, Factors(_bare(parts[:last])))
            if wrapped.found.setdefault(parts[last], tensor) is not tensor:
                raise _twice(tensor)
        elif _ROWS in parts:
            module = _bare(parts[: parts.index(_ROWS)])
            if rows.setdefault(module, tensor) is not tensor:
                raise _twice(tensor)
        else:
            key = _bare(parts)
            one = whole.setdefault(key, Whole(tensor, _SAVED in parts))
            # `save_embedding_layers` of PEFT writes what was trained whole under both names.
            if one.tensor is not tensor and not holds_same(one.tensor, tensor):
                raise _twice(tensor)
            whole[key] = Whole(one.tensor, one.is_copy or _SAVED in parts)
    return AdapterTensors(factors, whole, rows)


def _bare(parts: list[str]) -> str:
    """A name without what PEFT puts into it."""
    kept = []
    for i, part in enumerate(parts):
        is_named = part == _DEFAULT and i > 0 and parts[i - 1] == _SAVED
        if part not in (_BASE, _SAVED, "token_adapter") and not is_named:
            kept.append(part)
    return ".".join(kept).removeprefix(MERGED_FRONT)


def _check_kind(end: list[str], tensor: TensorInfo) -> None:
    """Refuse what is no factor: `lora_A`, then an adapter's name or not, then `weight` or not."""
    kind, *rest = end
    where = f"tensor `{printable(tensor.name)}` in `{tensor.path.name}`"
    if rest and rest[-1] == "bias":
        raise CheckpointError(
            f"{where} is a bias (`lora_bias`), and the matrices of Gemma 4 have none: PEFT cannot "
            "merge it either",
            hint="train the adapter with lora_bias=False",
        )
    rest = rest[:-1] if rest and rest[-1] == "weight" else rest
    if kind not in (*A, *B, MAGNITUDE) or len(rest) > 1:
        raise CheckpointError(
            f"{where} is of a method that is not merged here",
            hint=f"{MERGE_HINT}, and compile that",
        )


def _twice(tensor: TensorInfo) -> CheckpointError:
    return CheckpointError(
        f"`{tensor.path.name}` has more tensors than one for `{printable(tensor.name)}`: those of "
        "several adapters, or one under two names",
        hint="save each adapter to a folder of its own, and give --adapter for each",
    )

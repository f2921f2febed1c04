"""`--adapter`: LoRA adapters of PEFT, merged into a checkpoint's tensors while they are read.

Nothing is written: a merged matrix is a tensor that a decoder computes. What comes out is what
PEFT's `merge_and_unload` makes, for one adapter after the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gemma4_compile.checkpoint.adapter_config import AdapterConfig, ends_with_one
from gemma4_compile.checkpoint.adapter_merge import (
    Factor,
    Merged,
    ReplacedRows,
    Update,
    stack_layout,
    stack_updates,
)
from gemma4_compile.checkpoint.adapter_names import MAGNITUDE, AdapterTensors, Factors
from gemma4_compile.checkpoint.match import RESIZE_HINT
from gemma4_compile.checkpoint.safetensors_file import TensorInfo, computed
from gemma4_compile.checkpoint.spellings import usual_name, usual_tensors
from gemma4_compile.errors import CheckpointError, printable
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text.component import TEXT
from gemma4_compile.model_spec.text.parameters import HEAD
from gemma4_compile.options.process import warn

_FRONT = TEXT.prefixes[0]
_EMBEDDING, _HEAD = f"{_FRONT}embed_tokens.weight", f"{HEAD}.weight"
_ONE_EXPERT = re.compile(r"(.+\.experts)\.(0|[1-9]\d{0,3})\.(gate_proj|up_proj|down_proj)")
_FITS = "the adapter is of another model or size: give the one that it was trained on"
_TWO_TRAININGS = "the two files are not of the same training: download or save both again"
_UNTIE = (
    "for the replies of the adapter that is not merged, save the model with a head of its own "
    "(tie_word_embeddings false, lm_head.weight a copy of the embedding) and compile that"
)


@dataclass(frozen=True)
class Adapter:
    """An opened adapter; `name` is how messages call it."""

    name: str
    config: AdapterConfig
    tensors: AdapterTensors


def apply_adapter(
    tensors: Mapping[str, TensorInfo], config: Gemma4Config, adapter: Adapter
) -> tuple[dict[str, TensorInfo], Gemma4Config]:
    """A checkpoint's tensors with an adapter merged into them, by their usual names.

    The config says of the head whether it is tied after that.

    Raises
    ------
    CheckpointError
        If a tensor of the adapter is of no matrix of the model, or of another shape.
    """
    usual = usual_tensors(tensors, _FRONT)
    if config.ties_head:
        usual.pop(_HEAD, None)  # a copy of the embedding
    merging = _Merging(usual, config, adapter)
    merging.replace_whole()
    merging.update_matrices()
    merging.replace_rows()
    merging.finish()
    return merging.tensors, merging.config


@dataclass
class _Merging:
    """One adapter on its way into the tensors of a model."""

    tensors: dict[str, TensorInfo]
    config: Gemma4Config
    adapter: Adapter

    def __post_init__(self) -> None:
        self._count = 0
        self._left_out: list[str] = []  # modules of modalities that are not compiled
        self._not_targets: list[str] = []
        self._is_tied = self.config.ties_head

    def _place(self, name: str, tensor: TensorInfo) -> str | None:
        """The usual name of what a tensor changes; None if nothing reads that."""
        usual = usual_name(name, _FRONT)
        for component in COMPONENTS:
            prefix = next((one for one in component.prefixes if usual.startswith(one)), None)
            if prefix is None or (component is TEXT and not usual.startswith(_FRONT)):
                continue
            if component.is_unused(component.source_name(usual, prefix), self.config):
                if component is not TEXT:
                    self._left_out.append(component.name)
                self._count += component is TEXT
                return None
        if usual == _HEAD and self._is_tied:
            return usual
        if usual not in self.tensors:
            raise CheckpointError(
                f"{self.adapter.name}: tensor `{printable(tensor.name)}` is of no matrix of the "
                "model",
                hint=_FITS,
            )
        return usual

    def _wrong_shape(
        self, tensor: TensorInfo, expected: tuple[object, ...], name: str
    ) -> CheckpointError:
        shown = ", ".join(map(str, expected)) + ("," if len(expected) == 1 else "")
        base = self.tensors.get(_EMBEDDING if name == _HEAD and self._is_tied else name, tensor)
        is_vocabulary = name in (_EMBEDDING, _HEAD) and tensor.shape[1:] == base.shape[1:]
        return CheckpointError(
            f"{self.adapter.name}: tensor `{printable(tensor.name)}` has shape {tensor.shape}, "
            f"expected ({shown}) for `{name}`",
            hint="the vocabulary was resized for the adapter: merge it with PEFT into the model "
            "that was resized, and compile that"
            if is_vocabulary
            else _FITS,
        )

    def replace_whole(self) -> None:
        """Put tensors that were saved whole in the place of the model's."""
        found = {}
        for name, whole in self.adapter.tensors.whole.items():
            place = self._place(name, whole.tensor)
            if place is None:
                continue
            old = self.tensors[_EMBEDDING if place == _HEAD and self._is_tied else place]
            if whole.tensor.shape != old.shape:
                raise self._wrong_shape(whole.tensor, old.shape, place)
            is_copy = whole.is_copy or self.adapter.config.is_saved(name.rpartition(".")[0])
            found[place] = replace(whole.tensor, name=place), is_copy
        self._count += len(found)
        if self._is_tied and found.keys() & {_EMBEDDING, _HEAD}:
            self._replace_tied(found)
        self.tensors.update({place: tensor for place, (tensor, _) in found.items()})

    def _replace_tied(self, found: dict[str, tuple[TensorInfo, bool]]) -> None:
        """Tell whether a tied head is a matrix of its own when a whole one takes its place.

        A module that was trained as a copy leaves the other as it was; what was saved of the shared
        matrix itself is both.
        """
        embedding, head = found.get(_EMBEDDING), found.pop(_HEAD, None)
        copies = [one for one in (embedding, head) if one is not None and one[1]]
        if not copies or self.adapter.config.ties:
            if embedding is None:
                assert head is not None, "one of the two is there"
                embedding = replace(head[0], name=_EMBEDDING), head[1]
            found[_EMBEDDING] = embedding
            return
        self.config = replace(self.config, ties_head=False)
        self._is_tied = False
        shared = self.tensors[_EMBEDDING]
        found[_HEAD] = head or (replace(shared, name=_HEAD), True)

    def update_matrices(self) -> None:
        """Add the products of the adapter's matrices."""
        changes: dict[str, list[tuple[str, Factors]]] = {}
        for factors in self.adapter.tensors.factors.values():
            if not self.adapter.config.is_target(factors.module):
                self._not_targets.append(factors.module)
                continue
            place = self._place_of(factors, next(iter(factors.found.values())))
            if place is not None:
                changes.setdefault(place, []).append((factors.module, factors))
        for place, several in changes.items():
            self._count += 1
            shared = _EMBEDDING if place == _HEAD and self._is_tied else place
            if shared == _EMBEDDING and self._is_tied:
                self._check_tied(place, changes)
            base = self.tensors[shared]
            if len(base.shape) == 3 and ".experts." in f"{shared}.":
                self._merge_experts(shared, [factors for _, factors in several])
            elif len(several) > 1:
                raise CheckpointError(
                    f"{self.adapter.name}: `{place}` is changed twice, as "
                    + " and as ".join(f"`{printable(module)}`" for module, _ in several[:2]),
                    hint="save the adapter again with PEFT's save_pretrained",
                )
            else:
                self._merge_matrix(shared, several[0][1])

    def _place_of(self, factors: Factors, tensor: TensorInfo) -> str | None:
        """The usual name of the matrix that is changed, or of the stack that it is a part of."""
        module = usual_name(f"{factors.module}.weight", _FRONT).removesuffix(".weight")
        one = _ONE_EXPERT.fullmatch(module)
        if one is not None:
            return self._place(
                f"{one[1]}.{'down_proj' if one[3] == 'down_proj' else 'gate_up_proj'}", tensor
            )
        if module.endswith(".experts"):
            return self._place(f"{module}.{self._stack_of(factors, module)}", tensor)
        return self._place(f"{factors.module}.weight", tensor)

    def _stack_of(self, factors: Factors, module: str) -> str:
        """Which of a layer's two stacks two factors fit; PEFT names both after the module."""
        a, b = factors.pair()
        for stack in ("gate_up_proj", "down_proj"):
            base = self.tensors.get(f"{module}.{stack}")
            if base is not None and stack_layout(base, a, b) is not None:
                return stack
        raise CheckpointError(
            f"{self.adapter.name}: tensors `{printable(a.name)}` {a.shape} and "
            f"`{printable(b.name)}` {b.shape} fit none of the stacks of experts of `{module}`",
            hint=_FITS,
        )

    def _check_tied(self, place: str, changes: Mapping[str, object]) -> None:
        if self.adapter.config.ties:
            raise CheckpointError(
                f"{self.adapter.name}: `ensure_weight_tying` with LoRA on a tied embedding, which "
                "PEFT does not load as it was trained",
                hint="merge it where it was trained, with merge_and_unload(), and compile that",
            )
        if place == _EMBEDDING and _HEAD in changes:
            return  # it is said once
        part, other = ("embedding", "head") if place == _EMBEDDING else ("head", "embedding")
        if {_EMBEDDING, _HEAD} <= changes.keys():
            part, other = "embedding and the head", "other"
        warn(
            f"{self.adapter.name} changes the {part}, and head and embedding of this model are one "
            f"matrix: the {other} changes with it, as in PEFT's merge_and_unload; the adapter that "
            "is not merged answers otherwise",
            _UNTIE,
        )

    def _merge_matrix(self, place: str, factors: Factors) -> None:
        base = self.tensors[place]
        a, b = factors.pair()
        if len(base.shape) != 2:
            raise CheckpointError(
                f"{self.adapter.name}: `{place}` of shape {base.shape} is no matrix, and LoRA is "
                "merged into matrices and stacks of experts alone",
                hint="merge it with PEFT's merge_and_unload(), and compile that",
            )
        rows, cols = base.shape
        width, height = (rows, cols) if factors.is_embedding else (cols, rows)
        rank = self._rank(factors, a, 1)
        if a.shape != (rank, width):
            raise self._wrong_shape(a, ("r", width), place)
        if b.shape != (height, rank):
            raise self._wrong_shape(b, (height, rank), place)
        left, right = (a, b) if factors.is_embedding else (b, a)
        turned = factors.is_embedding
        update = Update(
            Factor(left, is_transposed=turned),
            Factor(right, is_transposed=turned),
            self.adapter.config.scaling(factors.module, rank),
        )
        magnitude = self._magnitude(factors, cols if turned else rows, place)
        merged = Merged(base, (update,), magnitude, is_embedding=turned)
        self.tensors[place] = computed(place, base.shape, merged)

    def _rank(self, factors: Factors, a: TensorInfo, experts: int, stack: str = "") -> int:
        """The rank of two factors; CheckpointError if the config gives another."""
        module = f"{factors.module}.{stack}" if stack else factors.module
        expected = self.adapter.config.rank_of(module)
        found = a.shape[0] if a.shape else 0
        if found != expected * experts:
            of_experts = f" for each of {experts} experts" if experts > 1 else ""
            raise CheckpointError(
                f"{self.adapter.name}: tensor `{printable(a.name)}` has {found} rows, expected the "
                f"rank of adapter_config.json, {expected}{of_experts}",
                hint=_TWO_TRAININGS,
            )
        return expected

    def _magnitude(self, factors: Factors, count: int, place: str) -> TensorInfo | None:
        magnitude, use_dora = factors.found.get(MAGNITUDE), self.adapter.config.use_dora
        if (magnitude is not None) != use_dora:
            what = "has magnitudes of DoRA" if magnitude is not None else "has no magnitudes"
            raise CheckpointError(
                f"{self.adapter.name}: `{printable(factors.module)}` {what}, and `use_dora` of "
                f"adapter_config.json is {str(use_dora).lower()}",
                hint=_TWO_TRAININGS,
            )
        if magnitude is not None and magnitude.shape != (count,):
            raise self._wrong_shape(magnitude, (count,), place)
        return magnitude

    def _merge_experts(self, place: str, several: list[Factors]) -> None:
        base = self.tensors[place]
        updates: list[Update] = []
        seen: set[int] = set()
        for factors in several:
            if MAGNITUDE in factors.found or self.adapter.config.use_dora:
                raise CheckpointError(
                    f"{self.adapter.name}: DoRA on experts, which PEFT does not merge either",
                    hint="train the adapter without use_dora, or without the experts",
                )
            module = usual_name(f"{factors.module}.weight", _FRONT).removesuffix(".weight")
            one = _ONE_EXPERT.fullmatch(module)
            added = (
                self._stack_updates(place, factors)
                if one is None
                else [self._expert_update(place, factors, int(one[2]), one[3])]
            )
            for update in added:
                if update.first in seen:
                    raise CheckpointError(
                        f"{self.adapter.name}: `{place}` is changed twice",
                        hint="save the adapter again with PEFT's save_pretrained",
                    )
                seen.add(update.first)
            updates += added
        self.tensors[place] = computed(place, base.shape, Merged(base, tuple(updates)))

    def _stack_updates(self, place: str, factors: Factors) -> list[Update]:
        """Of all experts: A holds their factors one below the other, B theirs by turns."""
        base = self.tensors[place]
        stack = place.rpartition(".")[2]
        a, b = factors.pair()
        rank = self._rank(factors, a, base.shape[0], stack)
        scaling = self.adapter.config.scaling(f"{factors.module}.{stack}", rank)
        return stack_updates(base, a, b, scaling)

    def _expert_update(self, place: str, factors: Factors, expert: int, projection: str) -> Update:
        """Of one expert, where they are modules of their own."""
        experts, rows, cols = self.tensors[place].shape
        a, b = factors.pair()
        if expert >= experts:
            raise CheckpointError(
                f"{self.adapter.name}: tensor `{printable(a.name)}` is of expert {expert}, the "
                f"model has {experts}",
                hint=_FITS,
            )
        count = rows if projection == "down_proj" else rows // 2
        rank = self._rank(factors, a, 1)
        if a.shape != (rank, cols):
            raise self._wrong_shape(a, ("r", cols), place)
        if b.shape != (count, rank):
            raise self._wrong_shape(b, (count, rank), place)
        first = expert * rows + (count if projection == "up_proj" else 0)
        return Update(
            Factor(b), Factor(a), self.adapter.config.scaling(factors.module, rank), first
        )

    def replace_rows(self) -> None:
        """Put the rows in that were trained alone (`trainable_token_indices`)."""
        tokens = self.adapter.config.tokens
        for module, tensor in self.adapter.tensors.rows.items():
            key = next((name for name in tokens if ends_with_one(module, (name,))), None)
            place = self._place(f"{module}.weight", tensor)
            is_shared = place == _HEAD and self._is_tied
            if place is None or (
                is_shared and key is None and self.adapter.tensors.repeats_rows(tensor)
            ):
                continue  # nothing reads it, or PEFT has saved the embedding's for its head, too
            if key is None:
                raise CheckpointError(
                    f"{self.adapter.name}: `trainable_token_indices` of adapter_config.json does "
                    f"not say which rows tensor `{printable(tensor.name)}` holds",
                    hint=_TWO_TRAININGS,
                )
            indices, place = tokens[key], _EMBEDDING if is_shared else place
            base = self.tensors[place]
            if tensor.shape != (len(indices), *base.shape[1:]) or len(base.shape) != 2:
                raise self._wrong_shape(tensor, (len(indices), *base.shape[1:]), place)
            beyond = next((index for index in indices if index >= base.shape[0]), None)
            if beyond is not None:
                raise CheckpointError(
                    f"{self.adapter.name}: `trainable_token_indices` has token {beyond}, the model "
                    f"has {base.shape[0]}",
                    hint=RESIZE_HINT,
                )
            self._count += 1
            self.tensors[place] = computed(place, base.shape, ReplacedRows(base, indices, tensor))

    def finish(self) -> None:
        """Name what the adapter has and the package has not; an error if nothing is left."""
        if self._not_targets:
            shown = printable(self._not_targets[0])
            warn(
                f"{self.adapter.name}: `{shown}` ({len(self._not_targets)} in all) is left out, as "
                "PEFT does: adapter_config.json does not name it in `target_modules`, or excludes "
                "it by `exclude_modules` or `layers_to_transform`",
                "if it was trained, correct that file",
            )
        if self._left_out:
            kinds = " and ".join(sorted(set(self._left_out)))
            warn(
                f"{self.adapter.name} changes the {kinds} tower as well, in {len(self._left_out)} "
                "tensors that this package does not have: they are left out",
                "compile with --modalities all to have them, and a safetensors checkpoint, as a "
                "GGUF has text alone",
            )
        if not self._count:
            raise CheckpointError(
                f"{self.adapter.name} changes nothing of what is compiled",
                hint="give an adapter of this model, correct what its `target_modules` name, or "
                "compile with --modalities all",
            )

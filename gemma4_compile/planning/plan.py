"""Plan of a build, from the config alone: parameters, bytes, memory, needs of a device.

`--plan` shows it. Compilation uses the same numbers for the library's metadata, and refuses what
`BuildPlan.check` refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from gemma4_compile.errors import Gemma4CompileError, QuantizationError, UsageError
from gemma4_compile.media.sizes import BUDGETS, DEFAULT_BUDGET
from gemma4_compile.model_spec.audio.component import AUDIO
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import ALL_COMPONENTS, COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.config.vision import VisionConfig
from gemma4_compile.model_spec.embedding.component import EMBEDDING
from gemma4_compile.model_spec.embedding.memory import client_texts
from gemma4_compile.model_spec.layers.kv_cache import ITEM_BYTES, KvLayout
from gemma4_compile.model_spec.text.kv_layout import kv_layout, largest_chunk
from gemma4_compile.model_spec.text.layer_plan import layer_plans
from gemma4_compile.model_spec.vision.component import VISION
from gemma4_compile.model_spec.vision.memory import largest_budget
from gemma4_compile.passes.fusion_limits import kv_limits
from gemma4_compile.planning.divided_keys import divided_bytes
from gemma4_compile.planning.drafter_plan import DrafterPlan, plan_drafter
from gemma4_compile.planning.parameter_kinds import KINDS, kind_of, read_per_token
from gemma4_compile.planning.recipe_plan import RecipePlan, plan_recipe
from gemma4_compile.planning.weight_parts import PER_LAYER_TABLE
from gemma4_compile.quantization.recipe import Recipe
from gemma4_compile.quantization.scheme import DTYPE_BYTES
from gemma4_compile.quantization.schemes import MOBILE, NAMED, RECIPES
from gemma4_compile.targets.devices import Requirements
from gemma4_compile.targets.kernels.attention.head_dims import check_head_dim
from gemma4_compile.targets.spec import NATIVE, TargetSpec

_CHECKPOINT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
# Of a package besides weights: tokenizer (122 bytes an entry in the released ones) and library.
_TOKENIZER_BYTES_PER_ENTRY = 122
_LIBRARY_BYTES = 4 << 20
_WITHOUT = "leave `{}` out of --modalities"
_LOGITS = 4  # of the model, before and after the penalties, and their probabilities


@dataclass(frozen=True)
class KvPlan:
    """Memory of K and V at one context length.

    `padded_bytes` is what the same layers take in a cache of equal heads and equal lengths.
    """

    context_length: int
    sliding_bytes: int
    full_bytes: int
    padded_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes that are allocated."""
        return self.sliding_bytes + self.full_bytes


@dataclass(frozen=True)
class BuildPlan:
    """A model in one recipe on one target, and its neighbours for comparison.

    Attributes
    ----------
    parameters : number by kind, in the order of KINDS
    read_per_token : parameters that one decoded token reads, embedding rows not counted
    recipes : every recipe on this target; the chosen one is `recipe`
    kv : by context length; the chosen one is among them
    activation_tensor_bytes : largest of an activation in one binding
    picture_tensor_bytes, sound_tensor_bytes : the largest activation of a picture, of a sound in
        one binding; 0 without them
    image_tokens : rows of a picture, at most
    layout : of the KV state
    split_bytes : largest part of a stored tensor; None for no splits
    """

    config: Gemma4Config
    target: TargetSpec
    recipe: RecipePlan
    context_length: int
    prefill_chunk: int
    parameters: tuple[tuple[str, int], ...]
    read_per_token: int
    recipes: tuple[RecipePlan, ...]
    kv: tuple[KvPlan, ...]
    layout: KvLayout
    activation_tensor_bytes: int
    activation_bytes: int
    features: tuple[str, ...]
    picture_tensor_bytes: int = 0
    sound_tensor_bytes: int = 0
    image_tokens: int = DEFAULT_BUDGET
    drafter: DrafterPlan | None = None
    split_bytes: int | None = None

    @property
    def state_item_bytes(self) -> int:
        """Bytes of an element of K and V."""
        return ITEM_BYTES[self.layout.dtype]

    @property
    def state_tensor_bytes(self) -> int:
        """The largest tensor of K or V of a layer, or of a part of one."""
        return self.state_item_bytes * max(
            (slot.part_rows(self.context_length) * slot.row_elements for slot in self.layout.slots),
            default=0,
        )

    @property
    def kv_parts(self) -> int:
        """Parts that the keys of a full layer are in, at most."""
        return max((slot.parts for slot in self.layout.slots), default=1)

    @property
    def kv_bytes(self) -> int:
        """K and V at the chosen context length."""
        (chosen,) = (kv for kv in self.kv if kv.context_length == self.context_length)
        return chosen.total_bytes

    @property
    def device_memory_bytes(self) -> int:
        """Weights, K and V at the chosen context, and an estimate of the activations."""
        return self.recipe.weights_bytes + self.kv_bytes + self.activation_bytes

    @property
    def largest_binding_bytes(self) -> int:
        """The largest tensor that a kernel binds."""
        return max(
            self.recipe.largest_binding_bytes,
            self.state_tensor_bytes,
            self.activation_tensor_bytes,
            self.picture_tensor_bytes,
            self.sound_tensor_bytes,
        )

    @property
    def download_bytes(self) -> int:
        """The package, its tokenizer and library estimated."""
        tokenizer = _TOKENIZER_BYTES_PER_ENTRY * self.config.vocab_size
        drafter = 0 if self.drafter is None else self.drafter.weights_bytes
        return self.recipe.weights_bytes + drafter + tokenizer + _LIBRARY_BYTES

    @property
    def parameter_count(self) -> int:
        """All of them."""
        return sum(count for _, count in self.parameters)

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes read of the checkpoint; parts that the package does not take come on top."""
        if self.recipe.name == MOBILE.name:  # which is the checkpoint's own form
            return self.recipe.weights_bytes
        return self.parameter_count * _CHECKPOINT_BYTES[self.config.dtype]

    @property
    def subgroup_size(self) -> int:
        """Threads that the device's smallest subgroup must have; 0 if kernels use none."""
        return self.target.simd_width if "subgroups" in self.features else 0

    @property
    def requirements(self) -> Requirements:
        """Requirements of a device."""
        return Requirements(
            max_binding_bytes=self.largest_binding_bytes,
            max_shared_memory_bytes=self.target.max_shared_memory_bytes,
            max_threads_per_block=self.target.max_threads_per_block,
            max_storage_buffers=self.target.max_storage_buffers,
            features=self.features,
            memory_bytes=self.device_memory_bytes,
            subgroup_size=self.subgroup_size,
        )

    def provenance(self) -> dict[str, object]:
        """Requirements of a device, for readers that see the package before its library."""
        (kv,) = (kv for kv in self.kv if kv.context_length == self.context_length)
        return {
            "features": list(self.features),
            "language_features": list(self.target.language_features),
            "subgroup_size": self.subgroup_size,
            "max_binding_bytes": self.largest_binding_bytes,
            **self.target.block_limits,
            "weights_bytes": self.recipe.weights_bytes,
            "kv_sliding_bytes": kv.sliding_bytes,
            "kv_full_bytes": kv.full_bytes,
            "activation_bytes": self.activation_bytes,
            **({"host_table_bytes": self.host_table_bytes} if self.host_table_bytes else {}),
        }

    @property
    def host_table_bytes(self) -> int:
        """What a device saves with a window of a chunk's rows in the per-layer table's place.

        0 without such a table, where the window is as large, or where a recipe cannot store it.
        """
        table = dict(self.recipe.parts).get(PER_LAYER_TABLE)
        if not table:
            return 0
        row = -(-table // self.config.vocab_size_per_layer_input)
        return max(0, table - self.prefill_chunk * row)

    @property
    def problem(self) -> str | None:
        """Error of `check`; None if it can be built."""
        try:
            self.check()
        except Gemma4CompileError as error:
            return str(error)
        return None

    def check(self) -> None:
        """Refuse what cannot work on the target.

        Raises
        ------
        LoweringError
            If the target has no attention kernel for the heads of a layer, or of the vision tower.
        QuantizationError
            If the recipe cannot store the weights.
        UsageError
            If an activation, the keys of a window or those of a single position are larger than a
            binding; the hint names the option that helps.
        """
        for layer in layer_plans(self.config):
            check_head_dim(layer.head_dim, self.target)
        if isinstance(self.config.vision, VisionConfig):
            check_head_dim(self.config.vision.head_dim, self.target)
        self._check_pictures()
        if self.recipe.problem is not None:
            raise QuantizationError(self.recipe.problem)
        if self.drafter is not None and self.drafter.problem is not None:
            raise QuantizationError(self.drafter.problem)
        limit = self.target.max_binding_bytes
        if limit is None:
            return
        where = f"target `{self.target.name}` with limits `{self.target.limits}` binds at most"
        for nbytes, what, hint in (*self._bound_state(limit), *self._bound(limit)):
            if nbytes > limit:
                raise UsageError(f"{what} {nbytes} bytes, {where} {limit}", hint=hint)

    def _bound_state(self, limit: int) -> Iterator[tuple[int, str, str]]:
        """`_bound` of the KV state: full layers are in parts, of which the least is a position."""
        context, chunk, item = self.context_length, self.prefill_chunk, self.state_item_bytes
        for slot in self.layout.slots:
            row = slot.row_elements * item
            nbytes = slot.part_rows(context) * row
            yield row, "the keys of one position in one layer need", "choose a smaller --quant"
            if slot.window is not None:
                needs = f"--prefill-chunk {chunk}: the keys of a window and a chunk in a layer need"
                yield nbytes, needs, self._chunk_hint(limit)
            else:  # no keys: what else a package keeps of every position
                needs = f"--context {context}: one number of each position needs"
                yield nbytes, needs, _fitting("--context", context, nbytes, limit)

    def _chunk_hint(self, limit: int) -> str:
        """The hint of a chunk that is too long: what fits beside a window, and as activations."""
        item, windowed = self.state_item_bytes, [s for s in self.layout.slots if s.window]
        rings = [largest_chunk(slot, limit // (slot.row_elements * item)) for slot in windowed]
        fits = min([self.prefill_chunk * limit // self.activation_tensor_bytes, *rings])
        option = "--prefill-chunk" if self.config.embedding is None else "--context"
        return f"{option} {fits} fits" if fits > 0 else "choose a smaller --quant"

    def _bound(self, limit: int) -> Iterator[tuple[int, str, str]]:
        """Bytes of the largest activations, what needs them, and what would fit."""
        chunk, rows = self.prefill_chunk, self.image_tokens
        needs = f"--prefill-chunk {chunk}: one activation needs"
        yield self.activation_tensor_bytes, needs, self._chunk_hint(limit)
        fits = largest_budget(self.config, self.layout.dtype, limit)
        hint = f"--image-tokens {fits} fits" if fits else _WITHOUT.format("image")
        needs = f"--image-tokens {rows}: one activation of a picture needs"
        yield self.picture_tensor_bytes, needs, hint
        needs = "one activation of a sound needs"
        yield self.sound_tensor_bytes, needs, _WITHOUT.format("audio")

    def _check_pictures(self) -> None:
        """Refuse chunks that would cut a picture whose rows see each other."""
        config, rows = self.config, self.image_tokens
        if config.vision is None or not config.bidirectional_images or self.prefill_chunk >= rows:
            return
        option = "--prefill-chunk" if self.context_length >= rows else "--context"
        raise UsageError(
            f"--prefill-chunk {self.prefill_chunk}: a picture takes up to {rows} rows, which see "
            "each other in this model, so that no chunk may cut them",
            hint=f"{option} {rows} or more{_fewer_tokens(self.prefill_chunk)}, or leave `image` "
            "out of --modalities",
        )


def _fewer_tokens(rows: int) -> str:
    """The --image-tokens of pictures that take at most so many rows, as part of a hint."""
    fits = max((budget for budget in BUDGETS if budget <= rows), default=None)
    return "" if fits is None else f", --image-tokens {fits}"


def _fitting(option: str, value: int, nbytes: int, limit: int) -> str:
    """The hint of an option whose bytes grow with its value."""
    fits = value * limit // nbytes
    return f"{option} {fits} fits" if fits else "choose a smaller --quant"


def _plan_kv(layout: KvLayout, context_length: int) -> KvPlan:
    item = DTYPE_BYTES[layout.dtype]
    sliding = full = 0
    for slot in layout.slots:
        row = 2 * item * slot.row_elements
        if slot.rows is None:
            full += row * slot.parts * slot.part_rows(context_length)
        else:
            sliding += row * slot.rows
    heads = max((slot.kv_heads for slot in layout.slots), default=0)
    head_dim = max((slot.head_dim for slot in layout.slots), default=0)
    padded = 2 * item * heads * head_dim * context_length * len(layout.slots)
    return KvPlan(context_length, sliding, full, padded)


def make_plan(
    config: Gemma4Config,
    quant: str | Recipe,
    target: TargetSpec,
    context_length: int,
    prefill_chunk: int,
    contexts: Sequence[int] = (),
    *,
    image_tokens: int = DEFAULT_BUDGET,
    splits: TargetSpec | None = None,
    recipes: tuple[RecipePlan, ...] | None = None,
) -> BuildPlan:
    """Plan a model; nothing is refused here.

    Parameters
    ----------
    quant : the recipe, or its name
    contexts : further context lengths to show the state's memory at
    image_tokens : rows of a picture, at most
    splits : the target whose bindings split large tensors; None for this one
    recipes : of a plan with the same weights, of which all recipes need not be planned again
    """
    table = model_parameters(config, COMPONENTS)
    kinds = dict.fromkeys(KINDS, 0)
    for parameter in model_parameters(config, ALL_COMPONENTS):
        kinds[kind_of(parameter)] += prod(parameter.shape)
    recipe = NAMED[quant] if isinstance(quant, str) else quant
    shown = {**RECIPES, recipe.name: recipe}
    limit = (splits or target).max_binding_bytes
    if recipes is None:
        recipes = tuple(plan_recipe(config, table, one, limit) for one in shown.values())
    (chosen,) = (plan for plan in recipes if plan.name == recipe.name)
    dtype = recipe.activation_dtype
    layers = layer_plans(config) if config.embedding is None else ()  # an encoder keeps none
    layout = kv_layout(
        config,
        layers,
        dtype,
        prefill_chunk,
        pads_pictures=target.pads_pictures,
        limits=kv_limits(target, context_length),
    )
    used = [one for one in COMPONENTS if one.parameters(config)]
    memory = {one.name: one.activations(config, dtype) for one in used}
    positions = {name: one.positions or prefill_chunk for name, one in memory.items()}
    if VISION.name in memory:
        positions[VISION.name] = image_tokens
    largest = {name: positions[name] * max(one.tensors) for name, one in memory.items()}
    picture, sound = (largest.pop(one.name, 0) for one in (VISION, AUDIO))
    logits = _LOGITS * DTYPE_BYTES["float32"] * config.vocab_size
    if config.embedding is not None:
        texts = client_texts(config, target.device) or 1
        logits = DTYPE_BYTES["float32"] * config.embedding.dim * prefill_chunk * texts
        largest[EMBEDDING.name] = max(largest[EMBEDDING.name], logits)
    needs_f16 = recipe.has_float16 and target.float16 == NATIVE and target.float16_feature
    float16 = (target.float16_feature,) if needs_f16 else ()
    return BuildPlan(
        config=config,
        target=target,
        recipe=chosen,
        context_length=context_length,
        prefill_chunk=prefill_chunk,
        parameters=tuple((kind, count) for kind, count in kinds.items() if count),
        read_per_token=read_per_token(config, ((p, prod(p.shape)) for p in table)),
        recipes=recipes,
        kv=tuple(_plan_kv(layout, length) for length in sorted({context_length, *contexts})),
        layout=layout,
        activation_tensor_bytes=max(largest.values()),
        activation_bytes=max(
            positions[name] * sum(sizes) for name, one in memory.items() for sizes in one.together
        )
        + (logits + divided_bytes(layers, dtype, target)),
        features=float16 + target.features,
        picture_tensor_bytes=picture,
        sound_tensor_bytes=sound,
        image_tokens=image_tokens,
        split_bytes=limit,
        drafter=None if config.drafter is None else plan_drafter(config, recipe, target, limit),
    )

"""Parts of a model as a device's memory is counted by them, and which part a parameter is of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gemma4_compile.model_spec.parameters import Parameter
from gemma4_compile.planning.parameter_kinds import kind_of

PER_LAYER_TABLE = "per_layer_embedding"
"""The part that a device need not have whole."""
EXPERTS = "experts"
"""The part of which a device may have a share."""
PARTS: Mapping[str, str] = {
    "decoder": "layers of the text decoder",
    EXPERTS: "experts",
    "embedding": "token embedding and head",
    PER_LAYER_TABLE: "per-layer embedding table",
    "vision": "image input",
    "audio": "sound input",
    "drafter": "drafter, if it is used",
    "kv": "keys and values",
    "activations": "activations, estimated",
}
"""Names of the parts, for people, in the order in which they are shown."""
WEIGHTS = ("decoder", EXPERTS, "embedding", PER_LAYER_TABLE, "vision", "audio")
"""Parts that are weights of the model itself."""
_BY_KIND: Mapping[str, str] = {
    "experts": EXPERTS,
    "token_embedding": "embedding",
    "lm_head": "embedding",
    "per_layer_embedding": "per_layer_embedding",
    "vision_linear": "vision",
    "audio_linear": "audio",
    "drafter": "drafter",
}
_BY_PREFIX = {"vision_tower.": "vision", "vision_embedder.": "vision", "audio_tower.": "audio"}


def part_of(parameter: Parameter) -> str:
    """The part that a parameter of any component is counted in; a key of PARTS."""
    for prefix, part in _BY_PREFIX.items():
        if parameter.name.startswith(prefix):
            return part
    return _BY_KIND.get(kind_of(parameter), "decoder")


def bytes_by_part(sizes: Iterable[tuple[Parameter, int]]) -> tuple[tuple[str, int], ...]:
    """Sums of sizes by part, in the order of PARTS; those without any are left out."""
    found = dict.fromkeys(PARTS, 0)
    for parameter, size in sizes:
        found[part_of(parameter)] += size
    return tuple((part, size) for part, size in found.items() if size)

"""A compilation: what library and weights of a package share, and its provenance."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from dataclasses import dataclass

from gemma4_compile import __version__
from gemma4_compile.checkpoint.drafter import DrafterSource, match_drafter
from gemma4_compile.checkpoint.match import match
from gemma4_compile.checkpoint.safetensors_file import TensorInfo
from gemma4_compile.checkpoint.sources import TINY, ModelSource
from gemma4_compile.media.settings import MEDIA, MediaSettings
from gemma4_compile.model_spec.drafter.parameters import STEM
from gemma4_compile.model_spec.parameters import Role
from gemma4_compile.model_spec.text.config import Gemma4Config
from gemma4_compile.package import artifacts, interface
from gemma4_compile.package.media import settings_of
from gemma4_compile.package.partial_build import MODALITIES, NONFINITE
from gemma4_compile.quantization.recipe import Recipe, StoredParameter
from gemma4_compile.quantization.scheme import StoredTensor
from gemma4_compile.reports.plan import BuildPlan
from gemma4_compile.targets import TargetSpec
from gemma4_compile.types import JsonObject

MODEL_TYPE = "gemma4"
# What takes part in a compilation, for provenance; jinja2 is here for the chat that follows it.
PACKAGES = (
    *("apache-tvm", "apache-tvm-ffi", "huggingface_hub", "jinja2", "numpy"),
    *("safetensors", "tokenizers", "tqdm", "ziglang"),
)


@dataclass(frozen=True)
class Compilation:
    """Everything that library and weights of a package share."""

    source: ModelSource
    recipe: Recipe
    target: TargetSpec
    context_length: int
    prefill_chunk: int
    storage: tuple[StoredParameter, ...]
    suppressed: tuple[int, ...]
    numbers: BuildPlan
    allow_nonfinite: bool
    image_shape: str
    drafter: DrafterSource | None = None

    @property
    def config(self) -> Gemma4Config:
        """The model's config, with its drafter's."""
        return self.source.config

    @property
    def media(self) -> MediaSettings:
        """Settings of pictures and sounds."""
        return settings_of(self.config, self.numbers.image_tokens, self.image_shape)

    @property
    def quantization(self) -> str:
        """Name of the scheme of most matrices."""
        return self.recipe.schemes[Role.LINEAR].name

    @property
    def own_storage(self) -> list[StoredParameter]:
        """The stored parameters of the model itself."""
        return [one for one in self.storage if not one.parameter.name.startswith(STEM)]

    @property
    def drafter_storage(self) -> list[StoredParameter]:
        """The stored parameters of its drafter."""
        return [one for one in self.storage if one.parameter.name.startswith(STEM)]

    @property
    def tensors(self) -> list[StoredTensor]:
        """The model's tensors, in the order of the packed tuple."""
        return [tensor for stored in self.own_storage for tensor in stored.tensors]

    @property
    def parameter_schema_id(self) -> str:
        """Digest of those tensors."""
        return artifacts.parameter_schema_id(self.tensors)


def fingerprint(build: Compilation) -> str:
    """Equal for runs that write equal weights."""
    sources = (build.source, *((build.drafter,) if build.drafter else ()))
    # What ships is copied to another place in every run, and known by the version.
    given = [one.checkpoint for one in sources if one.checkpoint and one.origin["kind"] != TINY]
    tensors = [tensor for one in given for tensor in one.tensors.values()]
    paths = sorted({stored.path for tensor in tensors for stored in tensor.stored})
    stats = [(path, path.stat()) for path in paths]
    return artifacts.digest(
        {
            "version": __version__,
            "source": dict(build.source.origin),
            "config": repr(build.config),
            "quantised": [one.config.get("quantization_config") for one in given],
            "files": [[str(p), s.st_size, s.st_mtime_ns] for p, s in stats],
            "recipe": build.recipe.name,
            "allow_nonfinite": build.allow_nonfinite,
            "tensors": artifacts.parameter_schema_id(
                [tensor for stored in build.storage for tensor in stored.tensors]
            ),
        }
    )


def matched_tensors(build: Compilation) -> dict[str, TensorInfo]:
    """Tensors of all checkpoints by source name."""
    source, drafter = build.source.checkpoint, build.drafter
    assert source is not None, "only the weights are matched"
    found = match(source.tensors, build.config)
    if drafter is not None and drafter.checkpoint is not None:
        found |= match_drafter(drafter.checkpoint, build.config)
    return found


def config_digest(config: Gemma4Config) -> str:
    """Digest of a config in provenance."""
    values = dataclasses.asdict(config)
    del values[interface.DRAFTER]  # of another checkpoint, with a digest of its own
    _drop_tied(values)
    if config.vision is None:  # of text alone, as earlier versions have it
        del values["vision"], values["bidirectional_images"]
    if config.audio is None:
        del values["audio"]
    return artifacts.digest(values)


def _drop_tied(values: JsonObject) -> None:
    """Leave out that a head is tied: earlier versions have no other."""
    if values["ties_head"]:
        del values["ties_head"]


def provenance_of(build: Compilation) -> JsonObject:
    """The entry `build` of the package's provenance."""
    return {
        "source": {**build.source.origin, "config": config_digest(build.config)},
        "versions": {
            "gemma4-compile": __version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
        "recipe": build.recipe.name,
        "schemes": {role.value: build.recipe.schemes[role].name for role in _roles(build)},
        "overrides": [[pattern, scheme.name] for pattern, scheme in build.recipe.overrides],
        "target": build.target.name,
        **_device(build.target),
        "limits": build.target.limits,
        "activations": build.target.activations,
        "context_length": build.context_length,
        "prefill_chunk": build.prefill_chunk,
        MODALITIES: sorted(build.config.modalities),
        MEDIA: None if build.media == MediaSettings() else build.media.to_json(),
        "suppressed_tokens": list(build.suppressed),
        "parameter_schema_id": build.parameter_schema_id,
        "requirements": build.numbers.provenance(),
        NONFINITE: {} if build.allow_nonfinite else None,
        **_padding(build),
        **({} if build.drafter is None else {interface.DRAFTER: drafter_provenance(build.drafter)}),
    }


def _roles(build: Compilation) -> list[Role]:
    """The roles that a recipe has a scheme for; a head's of its own only where there is one."""
    used = {stored.parameter.role for stored in build.storage}
    return [role for role in Role if role is not Role.LM_HEAD or role in used]


def _padding(build: Compilation) -> JsonObject:
    """The entry of a library that goes on without the padding of the client's pictures."""
    drops = build.target.pads_pictures and build.config.vision is not None
    return {interface.DROPS_PADDING: True} if drops else {}


def _device(target: TargetSpec) -> JsonObject:
    """The device of a target that is not named for it."""
    return {} if target.device == target.name else {interface.DEVICE: target.device}


def drafter_provenance(drafter: DrafterSource) -> JsonObject:
    """The entry of a package's drafter."""
    values = dataclasses.asdict(drafter.config)
    _drop_tied(values)
    return {**drafter.origin, "config": artifacts.digest(values)}

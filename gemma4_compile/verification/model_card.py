"""The card of a published package: what it is, what it needs and how it is run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from gemma4_compile import abi
from gemma4_compile.checkpoint.hub_id import is_hub_id
from gemma4_compile.package.artifacts import Build, Provenance
from gemma4_compile.package.fields import PLAIN_NAME, Fields
from gemma4_compile.package.interface import DRAFTER, embeds
from gemma4_compile.package.libraries import LibraryRecord
from gemma4_compile.package.partial_build import CALIBRATION, FIT, MEMORY, MODALITIES
from gemma4_compile.planning.memory_picture import Memory, memory_picture, picture_words
from gemma4_compile.planning.plan_report import size
from gemma4_compile.planning.weight_parts import PARTS
from gemma4_compile.verification.weights_licence import OTHER, WeightsLicence

MARK = "<!-- written by gemma4-compile --publish -->"
LICENCE_FILE = "WEIGHTS_LICENSE"
PICTURE = "memory.svg"
"""The file of a card's picture, beside it."""
_RUNS = {
    "webgpu": "in browsers, by WebGPU",
    "cuda": "on NVIDIA GPUs",
    "metal": "on Macs",
    "cpu": "on CPUs",
}
_WEB = "webgpu"
_SNIPPET = """```js
import { chooseLibrary } from "gemma4-web/fast"; // first
import { CreateMLCEngine } from "@mlc-ai/web-llm";

const at = "https://huggingface.co/NAME/resolve/main/";
const engine = await CreateMLCEngine("gemma4", {
  appConfig: {
    model_list: [
      {
        model: at,
        model_id: "gemma4",
        ...(await chooseLibrary(at)),
        model_manifest: "mlc-model-manifest.json",
      },
    ],
  },
});
```"""


@dataclass(frozen=True)
class Published:
    """What a card is written of.

    Attributes
    ----------
    has_picture : the picture of its memory goes up with it
    """

    name: str
    provenance: Provenance
    licence: WeightsLicence
    numerics: Mapping[str, object] | None
    has_picture: bool = True


@dataclass(frozen=True)
class _Origin:
    """A checkpoint that the weights are from.

    Attributes
    ----------
    model, revision : on the hub; None of what was somebody's directory or file
    """

    kind: str
    model: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        """It in Markdown."""
        if self.model is None:
            return f"`{self.kind}`"
        page = f"[{self.model}](https://huggingface.co/{self.model})"
        return f"{page} at commit `{self.revision}`"


@dataclass(frozen=True)
class _Made:
    """What a build says, checked: a card is Markdown and YAML, and a package may be anybody's."""

    source: _Origin
    adapters: tuple[_Origin, ...]
    drafter: _Origin | None
    calibrated: bool
    recipe: str
    version: str
    context: int
    modalities: tuple[str, ...]
    memory: Memory | None


def model_card(published: Published) -> str:
    """The text of README.md, its metadata before it; ArtifactError for a damaged build."""
    made = _made(published.provenance.build)
    sections = [
        _front(published, made),
        MARK,
        _about(published, made),
        _numbers(published, made),
        _picture(made) if published.has_picture else "",
        _run(published),
    ]
    return "\n\n".join(part for part in sections if part) + "\n"


def _made(build: Build) -> _Made:
    read = Fields(build, abi.PROVENANCE_FILE)
    source = read.optional("source", dict) or {}
    adapters = Fields(source, abi.PROVENANCE_FILE).optional("adapters", list) or []
    drafter = read.optional(DRAFTER, dict)
    versions = Fields(read.optional("versions", dict) or {}, abi.PROVENANCE_FILE)
    modalities = read.optional(MODALITIES, list) or ["text"]
    if not all(isinstance(one, str) and PLAIN_NAME.fullmatch(one) for one in modalities):
        raise read.damaged(MODALITIES)
    return _Made(
        source=_origin(source),
        adapters=tuple(map(_origin, adapters)),
        drafter=None if drafter is None else _origin(drafter),
        calibrated=CALIBRATION in build,
        recipe=_plain(read, "recipe"),
        version=_plain(versions, "gemma4-compile"),
        context=read.optional("context_length", int) or 0,
        modalities=tuple(modalities),
        memory=_memory(read),
    )


def _memory(read: Fields) -> Memory | None:
    """Memory by part; None of a package of earlier versions."""
    if read.optional(MEMORY, dict) is None:
        return None
    fit = Fields(read.optional(FIT, dict) or {}, abi.PROVENANCE_FILE)
    budget, margin = (fit.optional(name, int) for name in ("budget_bytes", "margin_bytes"))
    parts, on_host = _sizes(read, MEMORY), _sizes(fit, "host_bytes")
    if any(nbytes > parts.get(part, 0) for part, nbytes in on_host.items()):
        raise fit.damaged("host_bytes")
    return Memory(parts, on_host, None if budget is None else budget - (margin or 0))


def _sizes(read: Fields, name: str) -> dict[str, int]:
    """Bytes by part; ArtifactError for what is none, or of no part."""
    sizes = read.optional(name, dict) or {}
    if not all(part in PARTS and type(size) is int and size >= 0 for part, size in sizes.items()):
        raise read.damaged(name)
    return sizes


def card_picture(published: Published) -> str | None:
    """The SVG that a card shows as PICTURE; None where provenance has no memory by part.

    ArtifactError for a damaged build.
    """
    memory = _made(published.provenance.build).memory
    return None if memory is None else memory_picture(memory)


def _origin(entry: object) -> _Origin:
    read = Fields(entry, abi.PROVENANCE_FILE)
    kind = _plain(read, "kind")
    if kind != "hub":
        return _Origin(kind)
    model: str = read.get("model", str)
    if not is_hub_id(model):
        raise read.damaged("model")
    return _Origin(kind, model, _plain(read, "revision"))


def _plain(read: Fields, name: str) -> str:
    """A field that is one word; "" where there is none."""
    text = read.optional(name, str) or ""
    if text and not PLAIN_NAME.fullmatch(text):
        raise read.damaged(name)
    return text


def _front(published: Published, made: _Made) -> str:
    licence = published.licence.identifier
    task = "image-text-to-text" if "image" in made.modalities else "text-generation"
    if "audio" in made.modalities:
        task = "any-to-any"
    if embeds(published.provenance.build):
        task = "feature-extraction"
    lines = ["---", f"license: {json.dumps(licence)}"]
    if licence == OTHER:
        lines += ["license_name: weights", f"license_link: {LICENCE_FILE}"]
    if made.source.model is not None:
        of_hub = [one.model for one in (made.source, *made.adapters) if one.model is not None]
        lines += ["base_model:", *(f"- {json.dumps(model)}" for model in dict.fromkeys(of_hub))]
        lines.append("base_model_relation: quantized")
    lines += [f"pipeline_tag: {task}", "library_name: gemma4-compile", "tags:"]
    targets = _targets(published.provenance)
    web = ["webllm"] if _WEB in targets else []
    tags = ["gemma4", *targets, *web, *filter(None, [made.recipe])]
    return "\n".join([*lines, *(f"- {json.dumps(tag)}" for tag in tags), "---"])


def _about(published: Published, made: _Made) -> str:
    merged = ""
    if made.adapters:
        word = "adapter" if len(made.adapters) == 1 else "adapters"
        merged = f", with the {word} {', '.join(map(str, made.adapters))} merged into it"
    calibrated = " Integers were chosen by what the model computes from a text."
    drafter = f" A drafter, {made.drafter}, drafts tokens ahead."
    return (
        f"# {published.name.partition('/')[2]}\n\n"
        f"{made.source}{merged}, compiled with gemma4-compile {made.version} in the recipe "
        f"`{made.recipe}`.{calibrated if made.calibrated else ''}"
        f"{'' if made.drafter is None else drafter} "
        "`provenance.json` has the hash of every file, and what it was "
        f"made from. The weights are under the licence in `{LICENCE_FILE}`; `LICENSE` and `NOTICE` "
        "are of what is linked into the libraries."
    )


def _targets(provenance: Provenance) -> list[str]:
    return list(dict.fromkeys(library.target for library in provenance.libraries))


def _numbers(published: Published, made: _Made) -> str:
    provenance = published.provenance
    total = sum(size for size, _ in provenance.files.values())
    memory = provenance.libraries[0].memory_bytes
    rows = [
        ("files", f"{total / 1e9:.2f} GB in {len(provenance.files)} files"),
        ("memory", f"{memory / 2**30:.2f} GiB with the whole context"),
        ("context", f"{made.context:,} tokens"),
        ("takes", ", ".join(made.modalities)),
    ]
    rows += [(f"`{one.file}`", _library(one)) for one in provenance.libraries]
    rows += _numerics(published.numerics)
    lines = [f"| {name} | {value} |" for name, value in rows]
    return "\n".join(["| | |", "|---|---|", *lines])


def _library(library: LibraryRecord) -> str:
    features = [f"`{name}`" for name in (*library.features, *library.language_features)]
    if library.subgroup_size:
        features.append(f"subgroups of {library.subgroup_size}")
    needs = f"; needs {', '.join(features)}" if features else ""
    where = _RUNS.get(library.target, f"on {library.target}")
    return f"runs {where} ({library.name}, activations {library.activations}){needs}"


def _numerics(numerics: Mapping[str, object] | None) -> list[tuple[str, str]]:
    """How far the package is from its checkpoint in float32, as `gemma4-verify` found it."""
    whole = numerics.get("whole") if numerics is not None else None
    cosine = whole.get("cosine_mean") if isinstance(whole, Mapping) else None
    if isinstance(cosine, (int, float)):  # of an encoder
        return [("mean cosine with the checkpoint's vectors in float32", f"{cosine:.5f}")]
    logits = whole.get("logits") if isinstance(whole, Mapping) else None
    kl = logits.get("kl_mean") if isinstance(logits, Mapping) else None
    top1 = logits.get("top1") if isinstance(logits, Mapping) else None
    if not isinstance(kl, (int, float)) or not isinstance(top1, (int, float)):
        return []
    value = f"{kl:.3g} nats, top-1 agreement {top1:.1%}"
    return [("mean KL divergence from the checkpoint in float32", value)]


def _picture(made: _Made) -> str:
    """The memory that it takes, as a picture with its words, and as a table."""
    if made.memory is None:
        return ""
    rows = [f"| {PARTS[part]} | {size(nbytes)} |" for part, nbytes in made.memory.on_device.items()]
    rows += [
        f"| {PARTS[part]}, on the host | {size(nbytes)} |"
        for part, nbytes in made.memory.on_host.items()
    ]
    table = "\n".join(["| part | memory |", "|---|---|", *rows])
    return f"## Memory\n\n![{picture_words(made.memory)}]({PICTURE})\n\n{table}"


def _run(published: Published) -> str:
    name = published.name
    targets = _targets(published.provenance)
    if embeds(published.provenance.build):
        return _run_encoder(name, targets)
    parts = ["## Run it"]
    if _WEB in targets:
        parts += [
            f"In a browser: `gemma4-serve {name}`, or in a page of one's own with "
            "`@mlc-ai/web-llm` and `gemma4-web`:",
            _SNIPPET.replace("NAME", name),
        ]
    if any(target != _WEB for target in targets):
        parts += [
            "In a terminal (a Mac, an NVIDIA GPU or a CPU, as the libraries are for), and as a "
            "server with OpenAI's API:",
            f"```\ngemma4-chat {name}\ngemma4-serve {name}\n```",
            "In Python:",
            "```python\n"
            "from pathlib import Path\n\n"
            "from huggingface_hub import snapshot_download\n"
            "from gemma4_compile.runtime import Chat, Sampler, SamplingOptions\n\n"
            f'chat = Chat.open(Path(snapshot_download("{name}")))\n'
            'print("".join(chat.stream("Hello", Sampler(SamplingOptions(temperature=0.0)))))\n'
            "```",
        ]
    return "\n\n".join(parts)


def _run_encoder(name: str, targets: list[str]) -> str:
    """How embeddings are made with a package."""
    parts = ["## Run it"]
    if _WEB in targets:
        parts.append(
            "In a browser: `engine.embeddings.create` of `@mlc-ai/web-llm`, with "
            "`model_type: ModelType.embedding` in the model list, and "
            f"`https://huggingface.co/{name}/resolve/main/` as the model."
        )
    if any(target != _WEB for target in targets):
        parts += [
            "As a server with OpenAI's `/v1/embeddings` (a Mac, an NVIDIA GPU or a CPU, as the "
            "libraries are for):",
            f"```\ngemma4-serve {name}\n```",
            "In Python:",
            "```python\n"
            "from huggingface_hub import snapshot_download\n"
            "from gemma4_compile.runtime import Embedder\n\n"
            f'embedder = Embedder.open(snapshot_download("{name}"))\n'
            'vectors = embedder.embed(["a text", "another"], task="document")\n'
            "```",
        ]
    return "\n\n".join(parts)

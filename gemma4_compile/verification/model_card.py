"""The card of a published package: what it is, what it needs and how it is run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.package.libraries import LibraryRecord
from gemma4_compile.verification.weights_licence import OTHER, WeightsLicence

MARK = "<!-- written by gemma4-compile --publish -->"
LICENCE_FILE = "WEIGHTS_LICENSE"
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
    """What a card is written of."""

    name: str
    provenance: Provenance
    licence: WeightsLicence
    numerics: Mapping[str, object] | None


def model_card(published: Published) -> str:
    """The text of README.md, its metadata before it."""
    sections = [_front(published), MARK, _about(published), _numbers(published), _run(published)]
    return "\n\n".join(part for part in sections if part) + "\n"


def _front(published: Published) -> str:
    build = published.provenance.build
    source = build.get("source", {})
    licence = published.licence.identifier
    modalities = build.get("modalities", ["text"])
    task = "image-text-to-text" if "image" in modalities else "text-generation"
    if "audio" in modalities:
        task = "any-to-any"
    lines = ["---", f"license: {json.dumps(licence)}"]
    if licence == OTHER:
        lines += ["license_name: weights", f"license_link: {LICENCE_FILE}"]
    if source.get("kind") == "hub":
        lines += [f"base_model: {json.dumps(source['model'])}", "base_model_relation: quantized"]
    lines += [f"pipeline_tag: {task}", "library_name: gemma4-compile", "tags:"]
    targets = _targets(published.provenance)
    web = ["webllm"] if _WEB in targets else []
    tags = ["gemma4", *targets, *web, str(build.get("recipe"))]
    return "\n".join([*lines, *(f"- {json.dumps(tag)}" for tag in tags), "---"])


def _about(published: Published) -> str:
    build = published.provenance.build
    source = build.get("source", {})
    base = {"hub": f"[{source.get('model')}](https://huggingface.co/{source.get('model')})"}
    origin = base.get(str(source.get("kind")), f"`{source.get('kind')}`")
    at = f" at commit `{source['revision']}`" if source.get("kind") == "hub" else ""
    adapters = len(source.get("adapters", ()))
    merged = f", with {adapters} adapters merged into it" if adapters else ""
    version = build.get("versions", {}).get("gemma4-compile", "")
    return (
        f"# {published.name.partition('/')[2]}\n\n"
        f"{origin}{at}{merged}, compiled with gemma4-compile {version} in the recipe "
        f"`{build.get('recipe')}`. `provenance.json` has the hash of every file, and what it was "
        f"made from. The weights are under the licence in `{LICENCE_FILE}`; `LICENSE` and `NOTICE` "
        "are of what is linked into the libraries."
    )


def _targets(provenance: Provenance) -> list[str]:
    return list(dict.fromkeys(library.target for library in provenance.libraries))


def _numbers(published: Published) -> str:
    provenance = published.provenance
    build, total = provenance.build, sum(size for size, _ in provenance.files.values())
    memory = provenance.libraries[0].memory_bytes
    rows = [
        ("files", f"{total / 1e9:.2f} GB in {len(provenance.files)} files"),
        ("memory", f"{memory / 2**30:.2f} GiB with the whole context"),
        ("context", f"{build.get('context_length')} tokens"),
        ("takes", ", ".join(build.get("modalities", ["text"]))),
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
    logits = whole.get("logits") if isinstance(whole, Mapping) else None
    kl = logits.get("kl_mean") if isinstance(logits, Mapping) else None
    top1 = logits.get("top1") if isinstance(logits, Mapping) else None
    if not isinstance(kl, (int, float)) or not isinstance(top1, (int, float)):
        return []
    value = f"{kl:.3g} nats, top-1 agreement {top1:.1%}"
    return [("mean KL divergence from the checkpoint in float32", value)]


def _run(published: Published) -> str:
    name = published.name
    targets = _targets(published.provenance)
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

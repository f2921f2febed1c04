"""The numerics report of an encoder's package: its vectors next to transformers' in float32."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from gemma4_compile.device_kinds import is_of_pages
from gemma4_compile.errors import UsageError
from gemma4_compile.options.verify import CHAT
from gemma4_compile.package.artifacts import Build
from gemma4_compile.package.interface import device_of
from gemma4_compile.package.libraries import numerics_files
from gemma4_compile.package.output_directory import check_writable
from gemma4_compile.package.partial_build import NONFINITE
from gemma4_compile.progress import Reporter
from gemma4_compile.runtime.embedding.embedder import Embedder
from gemma4_compile.targets.spec import INT8
from gemma4_compile.types import JsonObject
from gemma4_compile.verification.build_fields import reads_words
from gemma4_compile.verification.package_report import (
    PackageReport,
    write_report,
)
from gemma4_compile.verification.prompt import read_text
from gemma4_compile.verification.references import CHECKPOINT, PACKAGE
from gemma4_compile.verification.report import LINES
from gemma4_compile.verification.subject import (
    VerifyRequest,
    open_subject,
    provenance_of,
    reference_of,
)
from gemma4_compile.verification.texts import FOLDER, plain_text
from gemma4_compile.verification.thresholds import thresholds
from gemma4_compile.verification.torch_parts import (
    check_installed,
    choose_device,
    load_encoder,
    load_transformers,
)

Float32Array = npt.NDArray[np.float32]

SCHEMA, SCHEMA_VERSION = "gemma4_compile.embedding_numerics", 1
MOST_PASSAGES = 24  # of a text


@dataclass(frozen=True)
class VectorMeasures:
    """Vectors of length 1 next to those of a reference.

    Attributes
    ----------
    cosine_mean, cosine_min : of a text's two vectors, over the texts
    max_error : the largest distance between a text's two vectors
    swapped : of all pairs of texts, seen from each other text, those that the reference ranks
        clearly, and that are ranked the other way round
    """

    cosine_mean: float
    cosine_min: float
    max_error: float
    swapped: int


def compare_vectors(found: Float32Array, expected: Float32Array, clear: float) -> VectorMeasures:
    """Measures of vectors (texts, dimensions) of length 1.

    `clear` : difference of two cosines that no rounding turns round
    """
    one, other = found.astype(np.float64), expected.astype(np.float64)
    cosines = (one * other).sum(axis=1)
    swapped = 0
    for scores, truth in zip(one @ one.T, other @ other.T, strict=True):
        gaps = truth[:, None] - truth
        swapped += int(((gaps > clear) & (scores[:, None] <= scores)).sum())
    errors = np.linalg.norm(one - other, axis=1)
    return VectorMeasures(float(cosines.mean()), float(cosines.min()), float(errors.max()), swapped)


def clear_difference(cosine: float) -> float:
    """Of two cosines of three texts, whose vectors have at least this cosine with their own.

    Such a vector is ``sqrt(2 (1 - cosine))`` away, and each score has two of them.
    """
    return 4 * sqrt(2 * (1 - cosine))


@dataclass(frozen=True)
class VectorComparison:
    """Measures, and the bound of the mean cosine."""

    measures: VectorMeasures
    bound: float

    @property
    def failures(self) -> Iterator[str]:
        """What is beyond the bound; a NaN is."""
        found = self.measures
        if not found.cosine_mean >= self.bound:
            yield f"mean cosine is {found.cosine_mean:.7g}, at least {self.bound:g} is needed"
        if found.swapped:
            yield f"{found.swapped} pairs of texts are ranked the other way round"

    def to_json(self) -> JsonObject:
        """As it is in the report."""
        return {**asdict(self.measures), "thresholds": {"cosine_mean": self.bound}}


class EncoderReport(PackageReport):
    """Findings of an encoder's comparison."""

    def to_json(self) -> JsonObject:
        """Content of numerics.json."""
        return self.content(SCHEMA, SCHEMA_VERSION)


def encoder_texts(request: VerifyRequest) -> list[str]:
    """Texts of several lengths: the paragraphs of each text by form, and all of it as one more."""
    given = [read_text(request.text)]
    for name in request.texts:
        if name == CHAT:
            said = json.loads((FOLDER / "chat.json").read_text("utf-8"))
            given.append("\n\n".join(str(message["content"]) for message in said))
        else:
            given.append(plain_text(name))
    found: list[str] = []
    for text in given:
        paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
        found += [*paragraphs[:MOST_PASSAGES], text]
    return list(dict.fromkeys(found))


def verify_encoder(request: VerifyRequest, reporter: Reporter) -> EncoderReport:
    """Compare an encoder's package with transformers, and write the report into it.

    Raises
    ------
    Gemma4CompileError
        As `verify_package`; also for a library that runs in browsers alone.
    """
    asked = provenance_of(request.package)
    provenance = provenance_of(request.package, request.library)
    build, library = provenance.build, provenance.libraries[0]
    _check(request, build)
    check_writable(request.package)
    check_installed()
    transformer, encoder = load_transformers(), load_encoder()
    device = choose_device(request.device)
    reporter.stage(f"opening {request.package} and {request.reference}")
    with reference_of(request, build) as source:
        assert source.checkpoint is not None, "asked for"
        opened = open_subject(request, source.checkpoint, source.config, reporter)
        embedder = Embedder.open(request.package, device=library.name)
        texts = [
            ids[: request.text_tokens]
            for ids in embedder.tokens_of(encoder_texts(request), truncate=True)
        ]
        tokens = sum(map(len, texts))
        reporter.stage(f"running the package on {len(texts)} texts, {tokens} tokens")
        found = embedder.embed_tokens(texts)
        alone = np.concatenate([embedder.embed_tokens([ids]) for ids in texts])
        reporter.stage("running transformers in float32 on the package's weights")
        config = transformer.text_config(opened.checkpoint.config)
        run = (config, opened.config.dtype, opened.shapes, texts, device)
        own = encoder.embedded(opened.stored.read, *run)
        reporter.stage("running transformers in float32 on the checkpoint's weights")
        exact = encoder.embedded(opened.read, *run)
        origin = {"source": dict(source.origin), "versions": transformer.VERSIONS}
    subject = {
        "package": {**opened.compiled, **opened.sizes},
        "reference": {**origin, NONFINITE: build.get(NONFINITE)},
        "texts": {"count": len(texts), "tokens": tokens, "longest": max(map(len, texts))},
    }
    arithmetic = _comparison(found, own, build, PACKAGE)
    apart = float(np.linalg.norm(found - alone, axis=1).max())
    report = EncoderReport(
        subject,
        arithmetic,
        _comparison(found, exact, build, CHECKPOINT),
        consistency={"neighbours_max_error": apart},
        others=tuple(_apart_failures(apart, arithmetic.bound)),
        names=numerics_files(library.name, main=library.file == asked.library)[:1],
    )
    write_report(request.package, asked, {report.names[0]: report.to_json()})
    return report


def _check(request: VerifyRequest, build: Build) -> None:
    """Raise UsageError for what there is not of an encoder."""
    check_native(device_of(build), build["target"])
    if request.drafter is not None:
        raise UsageError("an encoder has no drafter", hint="leave --drafter out")


def check_native(device: str, target: str) -> None:
    """UsageError for an encoder's library that runs in pages alone, by its device and target."""
    if is_of_pages(device):
        raise UsageError(
            f"gemma4-verify runs encoders natively, and this library is for `{target}`",
            hint="add one for this machine, which reads the same weights (`gemma4-compile ... "
            "--target webgpu,cpu`), and name it: gemma4-verify ... --library cpu",
        )


def _apart_failures(apart: float, bound: float) -> Iterator[str]:
    """Of the largest distance of a text's vector from the one that it has in a call of its own."""
    most = sqrt(2 * (1 - bound))
    if not apart <= most:
        yield (f"a text among others: {apart:.3g} from itself alone, at most {most:.3g} is allowed")


def _comparison(
    found: Float32Array, expected: Float32Array, build: Build, weights: str
) -> VectorComparison:
    bounds = thresholds(
        build["recipe"],
        int8=build["activations"] == INT8,
        whole=weights == CHECKPOINT,
        words=reads_words(build),
    )
    clear = clear_difference(bounds.cosine)
    return VectorComparison(compare_vectors(found, expected, clear), bounds.cosine)


def encoder_table(content: JsonObject) -> str:
    """The report as text."""
    package, texts = content["package"], content["texts"]
    versions = content["reference"]["versions"]
    lines = [
        f"numerics: {'passed' if content['passed'] else 'FAILED'}",
        f"{package['target']} {package['recipe']}, activations {package['activations']}",
        f"against transformers {versions['transformers']} in float32 (torch {versions['torch']})",
        f"{texts['count']} texts, {texts['tokens']} tokens, the longest {texts['longest']}",
    ]
    for key, _, name in LINES:
        found = content[key]
        bound = found["thresholds"]["cosine_mean"]
        lines += [
            "",
            f"reference with {name}",
            f"  {'mean cosine of two vectors':<32}{found['cosine_mean']:<22.7f}>= {bound:g}",
            f"  {'lowest cosine':<32}{found['cosine_min']:.7f}",
            f"  {'largest distance':<32}{found['max_error']:.3g}",
            f"  {'pairs ranked otherwise':<32}{found['swapped']:<22}0",
        ]
    apart = content["consistency"]["neighbours_max_error"]
    lines += ["", f"a text among others is {apart:.3g} from itself alone"]
    lines += [f"failed: {text}" for text in content["failures"]]
    return "\n".join(lines)

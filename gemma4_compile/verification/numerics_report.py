"""The numerics report of a package: what is run and compared, and what is written down."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gemma4_compile.errors import UsageError
from gemma4_compile.media.settings import media_settings
from gemma4_compile.options.verify import DEFAULT_STEPS
from gemma4_compile.package.interface import device_of, embeds
from gemma4_compile.package.libraries import numerics_files
from gemma4_compile.package.output_directory import check_writable
from gemma4_compile.package.partial_build import NONFINITE
from gemma4_compile.progress import Reporter
from gemma4_compile.quantization.quality import Thresholds
from gemma4_compile.system.files import scratch_folder
from gemma4_compile.targets.spec import INT8
from gemma4_compile.types import JsonObject
from gemma4_compile.verification.build_fields import reads_words
from gemma4_compile.verification.drafter import (
    DrafterReport,
    DraftSubject,
    compare_drafter,
    drafter_of,
)
from gemma4_compile.verification.forms import FormReport, FormTrial, compare_trials
from gemma4_compile.verification.measures import (
    LayerMeasures,
    LogitMeasures,
    compare_layer,
    compare_logits,
    divergence,
)
from gemma4_compile.verification.media import NAMES, MediumReport, compare_media
from gemma4_compile.verification.package_report import (
    PackageReport,
    write_report,
)
from gemma4_compile.verification.prompt import Prompt as Text
from gemma4_compile.verification.prompt import other_chunk, read_prompt, read_text
from gemma4_compile.verification.references import (
    CHECKPOINT,
    PACKAGE,
    References,
    Transformers,
    run_references,
)
from gemma4_compile.verification.report import picture
from gemma4_compile.verification.rounds import plan_rounds, rounds_for
from gemma4_compile.verification.runners import Job, Outcome, runner_for
from gemma4_compile.verification.samples import Room, make_trials
from gemma4_compile.verification.subject import (
    Subject,
    VerifyRequest,
    make_probe,
    open_subject,
    provenance_of,
    reference_of,
)
from gemma4_compile.verification.texts import open_reader
from gemma4_compile.verification.thresholds import shortfalls, thresholds
from gemma4_compile.verification.torch_parts import (
    check_installed,
    choose_device,
    load_transformers,
)

Float32Array = npt.NDArray[np.float32]

SCHEMA, SCHEMA_VERSION = "gemma4_compile.numerics", 2
"""Version 1 had no texts by form, and no number of weights."""


@dataclass(frozen=True)
class Comparison:
    """A package compared with transformers on one set of weights."""

    logits: LogitMeasures
    layers: tuple[LayerMeasures, ...]
    bounds: Thresholds

    @property
    def failures(self) -> tuple[str, ...]:
        """Measures beyond their bounds, as text."""
        return tuple(shortfalls(self.bounds, self.logits, self.layers))

    def to_json(self) -> JsonObject:
        """As it is in the report."""
        return {
            "logits": asdict(self.logits),
            "layers": [asdict(layer) for layer in self.layers],
            "thresholds": asdict(self.bounds),
        }


@dataclass(frozen=True)
class NumericsReport(PackageReport):
    """Findings of a decoder's comparison; its second file is a picture."""

    media: tuple[MediumReport, ...] = ()
    drafter: DrafterReport | None = None
    forms: tuple[FormReport, ...] = ()

    def to_json(self) -> JsonObject:
        """Content of numerics.json."""
        return {**self.content(SCHEMA, SCHEMA_VERSION), **self._parts_json()}

    def _parts_json(self) -> JsonObject:
        """Texts by form; nothing of media or a drafter where the package has none."""
        texts = {"texts": {form.trial.text.name: form.to_json() for form in self.forms}}
        media = {report.trial.modality: report.to_json() for report in self.media}
        drafter = {} if self.drafter is None else {"drafter": self.drafter.to_json()}
        return {**texts, **({"media": media} if media else {}), **drafter}


def _stack(outcomes: Sequence[Outcome]) -> tuple[Float32Array, Float32Array | None]:
    logits = np.stack([outcome.logits for outcome in outcomes])
    layers = [outcome.hidden for outcome in outcomes if outcome.hidden is not None]
    return logits, np.stack(layers, axis=1) if layers else None


def check_tools(device: str, node_modules: Path | None = None) -> None:
    """Report what is missing for verifying packages for a device, before anything long begins.

    Raises
    ------
    UsageError
        If torch, transformers or, for `webgpu`, Node and its packages are not installed.
    """
    check_installed()
    runner_for(device, node_modules)


def verify_package(request: VerifyRequest, reporter: Reporter) -> NumericsReport:
    """Compare a package with transformers, and write the numerics report into it.

    The package is replaced whole, with `numerics.json` (of another than the main library
    `numerics-NAME.json`), its picture and their hashes in the provenance; an error or a kill before
    that leaves it as it was.

    Raises
    ------
    Gemma4CompileError
        If something is missing, damaged or does not fit. A package that does not reach its
        thresholds is no error here: see `NumericsReport.passed`.
    """
    if request.steps < 1:
        raise UsageError(
            f"--steps: expected at least 1, found {request.steps}",
            hint=f"leave it out for {DEFAULT_STEPS}",
        )
    # What is no package, or misses a tool, is said before torch is loaded and weights are fetched.
    asked = provenance_of(request.package)
    built = provenance_of(request.package, request.library).build
    if embeds(built):
        raise UsageError(
            f"`{request.package}` makes embeddings, and this compares replies",
            hint="call `verification.verify.verify`, as gemma4-verify does",
        )
    check_writable(request.package)
    check_tools(device_of(built), request.node_modules)
    transformer = load_transformers()
    device = choose_device(request.device)
    reporter.stage(f"opening {request.package} and {request.reference}")
    with (
        reference_of(request, built) as source,
        drafter_of(request, built, source.config) as drafter,
    ):
        assert source.checkpoint is not None, "asked for"
        opened = open_subject(request, source.checkpoint, source.config, reporter)
        run, devices = runner_for(device_of(built), request.node_modules, request.library)
        text = read_text(request.text)
        prompt = read_prompt(request.package, source.config, text, opened.context, request.steps)
        sizes = Room(opened.context, min(built["prefill_chunk"], opened.context), request.steps)
        settings = media_settings(built)
        trials = tuple(make_trials(settings, prompt.ids, sizes, transformer.scaled))
        odd = other_chunk(prompt.length, opened.provenance.build["prefill_chunk"])
        room = min(request.text_tokens, opened.context)
        texts = open_reader(request.package, source.config, room).read(request.texts)
        forms = tuple(FormTrial.of(one, request.steps) for one in texts)
        jobs: list[list[Job]] = [[*prompt.decoded(), *prompt.again(odd)]]
        jobs += [form.jobs() for form in forms]
        jobs += [trial.jobs() for trial in trials]
        with scratch_folder(prefix="gemma4-verify-") as folder:
            probe = make_probe(request, opened, Path(folder), reporter)
            shown = "".join(f", and a {NAMES[trial.modality]}" for trial in trials)
            tokens = len(prompt.ids) + sum(len(trial.text.ids) for trial in forms)
            reporter.stage(f"running the package on {tokens} tokens{shown}")
            found = _divided(run(request.package, [job for part in jobs for job in part]), jobs)
            reporter.stage("running it again, with the residual streams of every layer")
            probed = run(probe, prompt.decoded())
        if drafter is not None:
            reporter.stage("running its drafter")
            run_rounds = rounds_for(device_of(built), request.node_modules, request.library)
            rounds = run_rounds(request.package, prompt.ids, plan_rounds(prompt.runs, sizes.chunk))
        references = run_references(opened, prompt, forms, device, reporter)
        if trials:
            reporter.stage("running transformers in float32 on pictures and sounds")
        readers = {PACKAGE: opened.stored.read, CHECKPOINT: opened.read}
        models = {name: Transformers(transformer, opened, read) for name, read in readers.items()}
        media = compare_media(opened, trials, found[1 + len(forms) :], models)
        drafted = None
        if drafter is not None:
            reporter.stage("running the drafter in float32")
            subject = DraftSubject.of(request, opened, drafter)
            drafted = compare_drafter(subject, prompt, rounds, references.runs)
        reference = {"source": dict(source.origin), "versions": transformer.VERSIONS}
    results = (found[0], probed, references, tuple(media), drafted)
    measured = _Measured(opened, prompt, odd, *results, forms, found[1 : 1 + len(forms)])
    library, *_ = opened.provenance.libraries
    names = numerics_files(library.name, main=library.file == asked.library)
    report = _report(measured, _hash(text), reference, devices, names)
    content = report.to_json()
    written = dict(zip(names, (content, picture(content)), strict=True))
    write_report(request.package, asked, written)
    return report


def _divided(outcomes: Sequence[Outcome], jobs: Sequence[Sequence[Job]]) -> list[list[Outcome]]:
    """Results of all jobs, one list for each list of jobs."""
    results = iter(outcomes)
    return [[next(results) for _ in part] for part in jobs]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class _Measured:
    """All runs of one verification."""

    opened: Subject
    prompt: Text
    odd_chunk: int
    found: Sequence[Outcome]
    probed: Sequence[Outcome]
    references: References
    media: tuple[MediumReport, ...]
    drafter: DrafterReport | None
    forms: tuple[FormTrial, ...]
    on_forms: Sequence[Sequence[Outcome]]


def _report(
    measured: _Measured,
    text: str,
    reference: JsonObject,
    devices: Sequence[str],
    names: tuple[str, str],
) -> NumericsReport:
    opened, prompt = measured.opened, measured.prompt
    build = opened.provenance.build
    count = len(prompt.rows)
    logits, _ = _stack(measured.found[:count])
    probe_logits, hidden = _stack(measured.probed)
    chunked, late = measured.found[count], measured.found[count + 1]
    assert hidden is not None, "the probe returns the residual streams"
    masked = build["suppressed_tokens"]

    def compare(name: str) -> Comparison:
        run = measured.references.runs[name]
        return Comparison(
            compare_logits(logits, run.logits, prompt.following, masked),
            tuple(compare_layer(*pair) for pair in zip(hidden, run.hidden, strict=True)),
            thresholds(
                build["recipe"],
                int8=build["activations"] == INT8,
                whole=name == CHECKPOINT,
                words=reads_words(build),
                stepped=opened.config.rounds_activations,
            ),
        )

    arithmetic, whole = compare(PACKAGE), compare(CHECKPOINT)
    whole_prefill = logits[prompt.steps]
    consistency = {
        "chunk": measured.odd_chunk,
        "chunked_prefill_kl": _kl(chunked.logits, whole_prefill),
        "chunked_prefill_max_error": _largest(chunked.logits, whole_prefill),
        "decode_kl": _kl(logits[-1], late.logits),
        "decode_max_error": _largest(logits[-1], late.logits),
        "probe_kl": float(divergence(probe_logits, logits).max()),
        "probe_max_error": _largest(probe_logits, logits),
    }
    others = _inconsistencies(consistency, arithmetic.bounds)
    logits_of = measured.references.forms
    forms = compare_trials(
        measured.forms,
        measured.on_forms,
        logits_of[PACKAGE],
        logits_of[CHECKPOINT],
        measured.references.stored,
        arithmetic.bounds,
        masked,
    )
    parts = (*forms, *measured.media, *((measured.drafter,) if measured.drafter else ()))
    others += [text for part in parts for text in part.failures]
    subject = {
        "package": {
            **opened.compiled,
            "device": devices[0] if devices else build["target"],
            **opened.sizes,
        },
        "reference": {**reference, NONFINITE: build.get(NONFINITE)},
        "text": {
            "sha256": text,
            "tokens": len(prompt.ids),
            "window": opened.config.sliding_window,
            "long_prompt": prompt.length,
            "longer_than_two_windows": prompt.length > 2 * opened.config.sliding_window,
            "decoded": prompt.steps,
        },
    }
    found = (arithmetic, whole, consistency, tuple(others), names)
    return NumericsReport(subject, *found, measured.media, measured.drafter, forms)


def _kl(found: Float32Array, expected: Float32Array) -> float:
    return float(divergence(found[None], expected[None])[0])


def _largest(found: Float32Array, expected: Float32Array) -> float:
    return float(np.abs(found.astype(np.float64) - expected).max())


def _inconsistencies(consistency: Mapping[str, float], bounds: Thresholds) -> list[str]:
    """Two ways through the same library may differ by what the arithmetic may: both are rounded."""
    names = {
        "chunked_prefill_kl": "prefill in other chunks",
        "decode_kl": "decoding against prefill",
        "probe_kl": "the library against its twin that returns the residual streams",
    }
    return [
        f"{what}: divergence {consistency[key]:.3g}, at most {2 * bounds.kl_mean:g} is allowed"
        for key, what in names.items()
        if not consistency[key] <= 2 * bounds.kl_mean
    ]

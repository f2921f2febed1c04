"""The options of `gemma4-compile` and what can be wrong with them, known without the compiler."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gemma4_compile.errors import ArtifactError, QuantizationError, UsageError
from gemma4_compile.options.command import Command, Group, given
from gemma4_compile.options.dump import DumpOption, dump_option
from gemma4_compile.options.libraries import check_every_target
from gemma4_compile.options.package import DEFAULT_MODEL, QUANTS, PackageOptions
from gemma4_compile.options.process import non_empty, warn
from gemma4_compile.options.publish import PublishOptions
from gemma4_compile.system.regular_files import resolved

_OF_PACKAGES = ("output", "force", "only", "dump_ir", "verify", "node_modules", "tokenizer")
_OF_REBUILDS = ("rebuild", "model", "drafter", "adapter", "tokenizer", "output", "force")
"""What says where files are; all else is of the package. So are options that name other inputs."""
# What --plan and --report do not need: they may precede a compilation's own options, so that
# the same line with one word more shows what it would do.
IGNORED: dict[str, tuple[str, ...]] = {
    "--plan": (*_OF_PACKAGES, "allow_nonfinite", "calibrate"),
    "--report": (
        *(*_OF_PACKAGES, "libraries", "limits", "activations", "float16", "context"),
        *("prefill_chunk", "image_tokens", "image_shape", "calibrate"),
    ),
}
_QUESTIONS = Group("questions and parts, in place of a whole package")
_BUILD = Group("the build")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _BuildOptions(PackageOptions):
    """What is done with a package, or asked about it."""

    plan: bool = _QUESTIONS.switch("--plan", "show what would be built, from the config alone")
    report: bool = _QUESTIONS.switch(
        "--report", "show what the recipe rounds away, tensor by tensor (reads all weights)"
    )
    json: bool = _QUESTIONS.switch("--json", "with --plan or --report: as JSON")
    only: Literal["library", "weights"] | None = _QUESTIONS.option(
        None,
        "--only",
        "a partial build: this part alone; the library needs only the config",
        choices=("library", "weights"),
    )
    rebuild: Path | None = _BUILD.option(
        None,
        "--rebuild PACKAGE",
        "make a package again from what its provenance.json says, and compare every byte; "
        "MODEL (and --drafter) where its checkpoint was a directory, -o to keep what is made",
    )
    revision: str | None = _BUILD.option(
        None, "--revision R", "branch, tag or commit on the hub", type=non_empty
    )
    force: bool = _BUILD.switch("--force", "replace DIR even if it is no package of ours")
    allow_nonfinite: bool = _BUILD.switch(
        "--allow-nonfinite",
        "store 0 for weights that are NaN or infinite, which are an error otherwise; the "
        "package names them",
    )
    verify: bool = _BUILD.switch(
        "--verify",
        "then compare the package with transformers in float32 (gemma4-verify does it alone)",
    )
    node_modules: Path | None = _BUILD.option(
        None,
        "--node-modules DIR",
        "with --verify, for webgpu: where the Node packages `webgpu` and "
        "`@mlc-ai/web-runtime` are (default: ./node_modules)",
    )
    dump_ir: DumpOption | None = _BUILD.option(
        None,
        "--dump-ir DIR",
        "write each phase's IR and kernel sources; `each`, or `each:DIR`: the IR after every "
        "pass, into OUTPUT-ir or DIR",
        type=dump_option,
    )


@dataclass(frozen=True, kw_only=True)
class CompileOptions(PublishOptions, _BuildOptions):
    """The options of `gemma4-compile`, which fit together."""

    @property
    def libraries_to_make(self) -> int:
        """How many libraries are compiled, at most."""
        asks = self.plan or self.report or self.rebuild or self.from_package or self.dump_ir
        return 0 if asks or self.only == "weights" else len(self.library_names) or 1

    def __post_init__(self) -> None:
        """Raise UsageError for what does not fit together."""
        if self.plan and self.report:
            raise UsageError("--plan and --report exclude each other", hint="give one of them")
        self.check_package()
        if self.only is None:  # --only renews some libraries of a package, and keeps the others
            check_every_target(self.target, self.libraries)
        self.check_publish()
        if self.rebuild is not None:
            self._check_rebuild()
        elif self.from_package is None:
            self._check_calibrate()
            if not self.plan and not self.report:
                self._check_output()

    def _check_rebuild(self) -> None:
        """Raise UsageError for options beside --rebuild that the package has in its provenance."""
        others = given(self, all_but=_OF_REBUILDS)
        if others:
            raise UsageError(
                f"--rebuild takes every option from the package, and {', '.join(others)} "
                f"{'is' if len(others) == 1 else 'are'} given",
                hint="leave out all but MODEL, --drafter, --adapter, --tokenizer, -o and --force",
            )

    def _check_calibrate(self) -> None:
        """Raise UsageError where --calibrate, written before MODEL, has taken it for its FILE."""
        file = self.calibrate
        if self.model is not None or not isinstance(file, Path):
            return
        if file.is_dir() or not file.exists() or file.suffix == ".gguf":
            raise UsageError(
                f"--calibrate takes what follows for the FILE of its text, and `{file}` is no "
                "text; no MODEL is given",
                hint=f"MODEL goes before it: gemma4-compile {shlex.quote(str(file))} --calibrate "
                "-o DIR",
            )

    def _check_output(self) -> None:
        """Raise UsageError for what a compilation lacks, or has no use for."""
        if self.output is None:
            example = f"gemma4-compile {self.model or DEFAULT_MODEL} -o DIR"
            raise UsageError(
                "the following arguments are required: -o/--output", hint=f"for example: {example}"
            )
        dump = None if self.dump_ir is None else self.dump_ir.beside(self.output)
        for name, place in (("--dump-ir", dump), ("--recipe", self.recipe)):
            if place is not None and _resolved(name, place).is_relative_to(
                _resolved("-o", self.output)
            ):
                raise UsageError(
                    f"{name} `{place}` lies in -o `{self.output}`, which is replaced as a whole",
                    hint="give it a place of its own",
                )
        if self.json:
            raise UsageError("--json goes with --plan or --report", hint="leave it out, or add one")
        if self.node_modules is not None and not self.verify:
            raise UsageError(
                "--node-modules goes with --verify", hint="leave it out, or add --verify"
            )
        if self.verify and self.only:
            raise UsageError("--verify needs a whole package", hint="leave out --only")

    def warn_of_ignored(self) -> None:
        """Name the options that do nothing next to --plan or --report."""
        question = "--plan" if self.plan else "--report"
        ignored = given(self, IGNORED[question]) if self.plan or self.report else []
        if ignored:
            verb = "does" if len(ignored) == 1 else "do"
            warn(
                f"{question} writes nothing, and {', '.join(ignored)} {verb} nothing next to it",
                f"leave out {question} to compile",
            )


def _resolved(option: str, given: Path) -> Path:
    try:
        return resolved(given)
    except OSError as error:
        raise UsageError(
            f"{option}: cannot read `{given}`: {error.strerror}", hint="check the file's name"
        ) from error


COMMAND = Command(
    "gemma4-compile",
    "Compile a Gemma 4 checkpoint into a package for the browser, for GPUs of "
    "NVIDIA and Apple, or for this CPU.",
    CompileOptions,
    hints={
        QuantizationError: f"try another --quant: {', '.join(QUANTS)}",
        ArtifactError: "choose another -o",
    },
    interrupted="nothing is left of this run; the same command starts anew",
    surplus="one model at a time; several values of an option have commas and no spaces between "
    "them: --target webgpu,cpu",
)

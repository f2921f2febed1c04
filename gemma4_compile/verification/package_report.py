"""What the numerics reports of decoders and of encoders share, and their place in the package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gemma4_compile.errors import VerificationError
from gemma4_compile.package import files
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.package.output_directory import output_directory
from gemma4_compile.types import JsonObject


class Compared(Protocol):
    """A package next to one set of weights."""

    @property
    def failures(self) -> Iterable[str]:
        """Measures beyond their bounds, as text."""

    def to_json(self) -> JsonObject:
        """As it is in the report."""


@dataclass(frozen=True)
class PackageReport:
    """Findings of a comparison; `to_json` is the content of numerics.json.

    Attributes
    ----------
    arithmetic, whole : next to the package's own weights, and to the checkpoint's
    consistency : two ways through the same library, by what is measured
    others : measures of further comparisons beyond their bounds, as text
    names : of its files in the package; the first is the report's
    """

    subject: JsonObject
    arithmetic: Compared
    whole: Compared
    consistency: Mapping[str, float]
    others: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """All measures beyond their bounds, as text."""
        found = [f"arithmetic: {text}" for text in self.arithmetic.failures]
        found += [f"against the checkpoint: {text}" for text in self.whole.failures]
        return (*found, *self.others)

    @property
    def passed(self) -> bool:
        """Return whether every measure is within its bound."""
        return not self.failures

    def check(self, package: Path) -> None:
        """Raise VerificationError with the first failure, if there is one."""
        if self.failures:
            hint = f"all measures are in {package / self.names[0]}"
            raise VerificationError(self.failures[0], hint=hint)

    def content(self, schema: str, version: int) -> JsonObject:
        """What every report has: no times, no paths."""
        return {
            "schema": schema,
            "schema_version": version,
            "passed": self.passed,
            "failures": list(self.failures),
            **self.subject,
            "arithmetic": self.arithmetic.to_json(),
            "whole": self.whole.to_json(),
            "consistency": dict(self.consistency),
        }


def write_report(package: Path, provenance: Provenance, contents: Mapping[str, object]) -> None:
    """Put a report's files into its package, a text as it is and others as JSON: all, or nothing.

    Parameters
    ----------
    provenance : of the package as it is
    contents : by the names of files, in the place of those that it has
    """
    kept = {name: provenance.listed(name) for name in provenance.files if name not in contents}
    with output_directory(package, force=False, weights=False) as directory:
        files.take_over(package, kept, directory)
        for name, content in contents.items():
            if isinstance(content, str):
                files.write_text(directory / name, content)
            else:
                files.write_json(directory / name, content)
        build, libraries = dict(provenance.build), provenance.libraries
        files.finish(directory, provenance.library, build, kept, libraries)

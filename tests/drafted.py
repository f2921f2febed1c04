"""Packages of small random models with small random drafters, compiled once a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from gemma4_compile.pipeline import compile_model
from gemma4_compile.request import CompileRequest
from tests import drafters, models, packages
from tests.drafters import Drafter
from tests.shared import made_once, shared_folder

CONTEXT, CHUNK = 256, 12  # a chunk of nine tokens and more, and every window wraps


@dataclass(frozen=True)
class Drafted:
    """A package, and what it was made of."""

    kind: str
    package: Path
    target: models.Checkpoint
    drafter: Drafter


def drafted_package(
    factory: pytest.TempPathFactory, kind: str, recipe: str = "f32", activations: str = "float"
) -> Drafted:
    """Compile a kind of `models.KINDS` with its drafter."""
    folder = factory.mktemp(f"drafted-{kind}")
    target = models.write_checkpoint(folder / "target", models.KINDS[kind])
    drafter = drafters.write_drafter(folder / "drafter", kind)

    def compile_it(output: Path) -> None:
        request = CompileRequest(
            model=str(target.path),
            target="cpu",
            quant=recipe,
            output=output,
            context_length=CONTEXT,
            prefill_chunk=CHUNK,
            activations=activations,
            drafter=str(drafter.path),
        )
        compile_model(request, packages.Silent())

    name = f"{kind}-{recipe}-{activations}"
    package = made_once(shared_folder(factory) / "drafted" / name, compile_it)
    return Drafted(kind, package, target, drafter)

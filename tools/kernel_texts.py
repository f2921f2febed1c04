"""What a change of the compiler does to the kernels: texts and launches of libraries, compared.

    python -m tools.kernel_texts before.json                 of all sizes, recipes and profiles
    python -m tools.kernel_texts now.json --against before.json
    python -m tools.kernel_texts now.json --against before.json --quick
    python -m tools.kernel_texts towers.json --towers    with the functions for pictures and sounds

Needs configs alone. A record holds, of each library, a hash of every kernel's text for its device
and one of every exported function: what it launches, in order, on which arguments. Names that only
tell kernels and variables apart are left out of both, so a kernel may be called otherwise. Texts
are kept in a file next to the record by what they are made of: only changed kernels are compiled.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tvm
from tvm import relax, tirx

from benchmarks.drafter_config import drafter_values
from gemma4_compile.compile.build import build_module, decoder_options
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.compile.resolve import choose
from gemma4_compile.model_spec.config.drafter import read_drafter
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config, preset_names
from gemma4_compile.model_spec.modality import TEXT_ONLY
from gemma4_compile.options.package import DEFAULT_PREFILL_CHUNK
from gemma4_compile.passes.kernel_sources import kernel_source
from gemma4_compile.passes.lowering import lower
from gemma4_compile.targets.libraries import LIBRARIES
from gemma4_compile.targets.spec import TargetSpec
from tools.imports import ROOT

RECIPES = ("q4f16", "q4f32")
PROFILES = ("f16", "default", "int8", "subgroups", "h200", "metal", "cuda")
COMPAT = "compat"
QUICK = (
    ("gemma-4-E2B-it", "q4f16", "f16"),
    ("gemma-4-E2B-it", "q4f16", "h200"),
    ("gemma-4-26B-A4B-it", "q4f16", "cuda"),
    ("gemma-4-26B-A4B-it", "q4f32", COMPAT),
    ("gemma-4-E2B-it", "q4f32", "metal"),
)
LOWERING = ("gemma4_compile/passes", "targets")
"""Folders whose files, not those below, make a kernel's text of its scheduled loops."""

Record = dict[str, dict[str, dict[str, str]]]
_WORD = re.compile(r"[A-Za-z_]\w*")
# Relax counts its variables, and arguments of the kernels that it makes have their names.
_COUNTED = re.compile(r"\blv\d+")
_LAUNCHED = re.compile(r"(R\.call_tir\w*\()(?:cls\.)?(\w+)")
_ASSIGNED = re.compile(r"^ +(\w+)(?:: .*)? = ", re.MULTILINE)
_PARAMETER = re.compile(r"[(,] ?(\w+): R\.")


@dataclass(frozen=True)
class LibraryCase:
    """A released size in a recipe, for a form of library or the limits COMPAT."""

    preset: str
    quant: str
    profile: str
    towers: bool = False

    @property
    def name(self) -> str:
        """Its name in a record."""
        return f"{self.preset}/{self.quant}/{self.profile}{'/towers' * self.towers}"

    @property
    def config(self) -> Gemma4Config:
        """The released size with its drafter and, if asked for, its towers."""
        config = Gemma4Config.from_preset(self.preset, None if self.towers else TEXT_ONLY)
        return replace(config, drafter=read_drafter(drafter_values(self.preset)))

    @property
    def request(self) -> CompileRequest:
        """The request that makes it."""
        base = CompileRequest(self.preset, "webgpu", self.quant, Path(), modalities=None)
        if self.profile == COMPAT:
            return replace(base, limits=COMPAT)
        return replace(base, libraries=(LIBRARIES[self.profile],))


def all_cases() -> list[LibraryCase]:
    """Every size, recipe and profile."""
    profiles = (*PROFILES, COMPAT)
    return [
        LibraryCase(preset, quant, profile)
        for preset in preset_names()
        for quant in RECIPES
        for profile in profiles
        if (quant, profile) != ("q4f32", "default")  # without float16 that is `f16`
    ]


class Texts:
    """Hashes of kernels' texts, by hashes of what they are made of; kept in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        files = [file for folder in LOWERING for file in sorted((ROOT / folder).glob("*.py"))]
        made_by = hashlib.sha256(b"".join(file.read_bytes() for file in files))
        made_by.update(tvm.__version__.encode())
        self._made_by = made_by.hexdigest()

    def hash_of(self, func: tirx.PrimFunc, spec: TargetSpec) -> str:
        """The hash of a scheduled kernel's text."""
        plain = func.with_attr("global_symbol", "kernel")
        script = without_counts(plain.script())
        key = digest(f"{self._made_by} {spec.tvm_target()} {spec.float16} {script}")
        if key not in self._known:
            self._known[key] = digest(without_counts(kernel_source(plain, "kernel", spec)))
        return self._known[key]

    def keep(self) -> None:
        """Write the file."""
        self._path.write_text(json.dumps(self._known, indent=0, sort_keys=True))


def digest(text: str) -> str:
    """Return a short hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def without_counts(text: str) -> str:
    """A kernel's text in which Relax's variables are counted from its own first one."""
    names: dict[str, str] = {}
    return _COUNTED.sub(lambda one: names.setdefault(one.group(), f"value{len(names)}"), text)


def without_names(script: str, kernels: Mapping[str, str]) -> str:
    """A function's script: variables by their first appearance, kernels by their texts' hashes."""
    script = _LAUNCHED.sub(lambda match: f"{match[1]}{kernels[match[2]]}", script)
    own = {*_ASSIGNED.findall(script), *_PARAMETER.findall(script)}
    numbers: dict[str, str] = {}

    def new_name(match: re.Match[str]) -> str:
        word = match.group()
        return numbers.setdefault(word, f"v{len(numbers)}") if word in own else word

    return _WORD.sub(new_name, script)


def record_of(case: LibraryCase, texts: Texts) -> dict[str, dict[str, str]]:
    """Hashes of one library: of its kernels by name, of its functions by name."""
    chosen = choose(case.request).main
    spec, recipe = chosen.target, chosen.recipe
    options = decoder_options(recipe, spec, DEFAULT_PREFILL_CHUNK)
    module = lower(build_module(case.config, recipe, spec, options), spec)
    functions = {var.name_hint: func for var, func in module.functions_items()}
    kernels = {
        name: texts.hash_of(func, spec)
        for name, func in functions.items()
        if isinstance(func, tirx.PrimFunc)
    }
    launches = {
        name: digest(without_names(func.script(), kernels))
        for name, func in functions.items()
        if isinstance(func, relax.Function)
    }
    return {"kernels": kernels, "functions": launches}


def differences(before: Record, now: Record) -> Iterator[str]:
    """One line for each library's change: texts that are new or gone, functions that differ."""
    for name, library in now.items():
        if name not in before:
            yield f"{name}: not in the record that it is compared with"
            continue
        old, new = before[name], library
        gone = Counter(old["kernels"].values()) - Counter(new["kernels"].values())
        came = Counter(new["kernels"].values()) - Counter(old["kernels"].values())
        for word, kernels, hashes in (("gone", old, gone), ("new", new, came)):
            found = [kernel for kernel, text in kernels["kernels"].items() if text in hashes]
            if found:
                yield f"{name}: {word} texts: {', '.join(sorted(found))}"
        for function in sorted({*old["functions"], *new["functions"]}):
            if old["functions"].get(function) != new["functions"].get(function):
                yield f"{name}: other launches in {function}"


def main(argv: Sequence[str] | None = None) -> int:
    """Write a record, compare it; returns 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("record", type=Path)
    parser.add_argument("--against", type=Path, help="the record to compare with")
    parser.add_argument("--quick", action="store_true", help="five libraries instead of all")
    parser.add_argument("--only", default="", help="libraries whose name holds this")
    parser.add_argument("--towers", action="store_true", help="of models with their towers")
    options = parser.parse_args(argv)
    cases = [LibraryCase(*case) for case in QUICK] if options.quick else all_cases()
    cases = [replace(case, towers=options.towers) for case in cases]
    texts = Texts(options.record.with_name("texts.json"))
    now: Record = {}
    for case in cases:
        if options.only in case.name:
            begin = time.perf_counter()
            now[case.name] = record_of(case, texts)
            texts.keep()
            print(f"{case.name} {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
    options.record.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
    if options.against is None:
        return 0
    found = list(differences(json.loads(options.against.read_text()), now))
    print("\n".join(found) or f"{len(now)} libraries: the same texts and launches")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

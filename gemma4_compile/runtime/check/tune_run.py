"""One library of a package, tried and timed in a process of its own, which may crash or hang.

`python -m gemma4_compile.runtime.check.tune_run DIR NAME CHECK SIZES SECONDS FOLDER` writes
FOLDER/result.json and FOLDER/logits.npy; `runtime.tune` starts it and reads them.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gemma4_compile.errors import Gemma4CompileError
from gemma4_compile.runtime.check.bench import measure
from gemma4_compile.runtime.check.kernel_check import (
    CompilerMissingError,
    check_kernels,
    kernels_of,
)
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.runtime.package.integrity import Check
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.package.room import Placement
from gemma4_compile.runtime.sampling.sampling import Float32Array

RESULT_FILE, LOGITS_FILE = "result.json", "logits.npy"
PROMPT_TOKENS = 128
_QUESTION = "What do you know? Name three things, and say why you know them."
_ROWS = 8  # tokens whose logits are compared


@dataclasses.dataclass(frozen=True)
class Timing:
    """Result of a library that runs.

    Attributes
    ----------
    problem : why it must not be chosen; "" for a library that computes right
    kernels : how many of them answered as their definitions, in the time for that
    prefill_tokens_per_s, decode_tokens_per_s : medians; 0 where there is a problem
    """

    problem: str = ""
    kernels: int = 0
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a user chose of a load, which goes from the process that starts a trial to it."""

    context_length: int | None = None
    placement: Placement = dataclasses.field(default_factory=Placement)

    def to_json(self) -> str:
        """The values as an argument."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Sizes:
        """The values of an argument that `to_json` wrote."""
        values = json.loads(text)
        return cls(values["context_length"], Placement(**values["placement"]))


def _wrong_kernel(package: Package, seconds: float) -> tuple[str, int]:
    """The first kernel that is wrong, if any, and how many were right in so many seconds."""
    device = Device.open(package.device)
    library = NativeLibrary(package.library_path, device)
    kernels = kernels_of(library.metadata())
    begin, right = time.monotonic(), 0
    chunk = package.chat_config.prefill_chunk_size
    try:
        for result in check_kernels(library, device, kernels, chunk):
            if result.problem:
                return f"kernel `{result.name}` ({result.kind}): {result.problem}", right
            right += 1
            if time.monotonic() - begin > seconds:
                break
    except CompilerMissingError:  # then the libraries' answers are compared alone
        pass
    return "", right


def _logits(engine: Engine, package: Package) -> Float32Array:
    """Logits (rows, vocab_size) after each of the last tokens of a question."""
    ids: list[int] = package.load_tokenizer().encode(_QUESTION).ids
    rows = min(_ROWS, len(ids) - 1)
    engine.clear()
    found = [engine.prefill(ids[:-rows])]
    found += [engine.decode(token_id) for token_id in ids[-rows:]]
    engine.clear()
    return np.stack(found)


def run(
    directory: Path,
    name: str,
    check: Check,
    sizes: Sizes,
    seconds: float,
    folder: Path,
) -> None:
    """Try one library; what is wrong with it is part of its result.

    Parameters
    ----------
    sizes : those that it is loaded with
    seconds : for which kernels are held against their definitions
    folder : for the result
    """
    timing, logits = Timing(), None
    try:
        package = Package.open(directory, check=check, drafter=False, device=name)
        problem, kernels = _wrong_kernel(package, seconds)
        timing = Timing(problem, kernels)
        if not problem:
            ple, experts = sizes.placement.ple, sizes.placement.experts
            length = sizes.context_length
            engine = Engine(
                package,
                context_length=length,
                drafts=0,
                ple=ple,
                experts=experts,
                expert_cache=sizes.placement.expert_cache,
            )
            logits = _logits(engine, package)
            (measured,) = measure(engine, engine.vocab_size, lengths=(PROMPT_TOKENS,))
            timing = dataclasses.replace(
                timing,
                prefill_tokens_per_s=measured.prefill_tokens_per_s,
                decode_tokens_per_s=measured.decode_tokens_per_s,
            )
    except (Gemma4CompileError, RuntimeError, ValueError, OSError) as error:
        timing = Timing(" ".join(str(error).split()) or type(error).__name__)
    if logits is not None:
        np.save(folder / LOGITS_FILE, logits, allow_pickle=False)
    (folder / RESULT_FILE).write_text(json.dumps(dataclasses.asdict(timing)), "utf-8", newline="\n")


def main(argv: Sequence[str]) -> None:
    """Run with the arguments above."""
    directory, name, check, text, seconds, folder = argv
    sizes = Sizes.from_json(text)
    run(Path(directory), name, Check(check), sizes, float(seconds), Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])

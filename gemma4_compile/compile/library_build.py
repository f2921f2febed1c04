"""Compile the libraries of a package: one after the other, or in a few processes at once."""

from __future__ import annotations

import contextlib
import copyreg
import pickle
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from gemma4_compile.compile import library_processes
from gemma4_compile.compile.build import (
    LibraryOptions,
    LibraryReport,
    build_executable,
)
from gemma4_compile.compile.compilation import Compilation, LibraryPlan, provenance_of
from gemma4_compile.compile.dump import Dump, begin_dump
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import Gemma4CompileError, TargetError
from gemma4_compile.media.sizes import client_blocks
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.embedding.memory import client_texts
from gemma4_compile.model_spec.parameters import Role
from gemma4_compile.package import interface
from gemma4_compile.package.digest import package_digest
from gemma4_compile.package.libraries import LibraryRecord
from gemma4_compile.package.step_work import StepWork
from gemma4_compile.planning.step_work import count_step_work
from gemma4_compile.progress import Reporter
from gemma4_compile.quantization.recipe import Recipe, StoredParameter
from gemma4_compile.targets import TargetSpec, link
from gemma4_compile.targets.spec import INT8, WORDS
from gemma4_compile.types import JsonObject


@dataclass(frozen=True)
class LibraryJob:
    """One library to compile and link into `path`; plain values, so that a process can be given it.

    Attributes
    ----------
    plan : the storage plan
    """

    config: Gemma4Config
    plan: tuple[StoredParameter, ...]
    recipe: Recipe
    target: TargetSpec
    options: LibraryOptions
    path: Path


def _proxy(values: dict[object, object]) -> MappingProxyType[object, object]:
    """A read-only view, as configs hold them: `pickle` knows none."""
    return MappingProxyType(values)


copyreg.pickle(MappingProxyType, lambda proxy: (_proxy, (dict(proxy),)))


def make_library(job: LibraryJob, reporter: Reporter | None = None) -> LibraryReport:
    """Compile and link; errors as `build_executable` and `link`."""
    executable, report = build_executable(job.config, job.plan, job.recipe, job.target, job.options)
    link(executable, job.path, job.target, None if reporter is None else reporter.stage)
    return report


def in_turn(targets: Sequence[TargetSpec]) -> list[int]:
    """Numbers of libraries in the order in which they are made, those with equal kernels together.

    A process that has made a library has most kernels of the next one of its arithmetic. The first
    stays so: its report is the package's.
    """

    def place(number: int) -> tuple[bool, str, bool, bool]:
        target = targets[number]
        return number > 0, target.name, target.float16 != WORDS, target.activations != INT8

    return sorted(range(len(targets)), key=place)


def build_libraries(
    build: Compilation,
    records: Sequence[LibraryRecord],
    directory: Path,
    request: CompileRequest,
    reporter: Reporter,
) -> LibraryReport:
    """Make every library of a compilation; returns the report of the first.

    Parameters
    ----------
    records : of the compilation's libraries, which name their files
    """
    names = [record.name for record in records]
    count = f"the model library for {build.libraries[0].target.name}"
    if len(names) > 1:
        count = f"{len(names)} model libraries: {', '.join(names)}"
    reporter.stage(f"compiling {count}")
    jobs = [
        _job(build, library, directory / record.file, request)
        for library, record in zip(build.libraries, records, strict=True)
    ]
    if request.dump_ir:
        begin_dump(request.dump_ir.beside(request.output))
    others = 0 if request.dump_ir else library_processes.processes(len(jobs)) - 1
    sent = pickle.dumps(tuple(jobs)) if others else b""
    waiting = deque(in_turn([job.target for job in jobs]))
    with contextlib.ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(max(others, 1)))
        started = [
            threads.submit(_give, stack.enter_context(library_processes.process(sent)), waiting)
            for _ in range(others)
        ]
        reports = []
        while waiting:
            reports.append(make_library(jobs[waiting.popleft()], reporter))
            for done in started:
                if done.done():
                    done.result()  # raises what went wrong there
        for process in started:
            process.result()
    return reports[0]


def _give(process: library_processes.Process, waiting: deque[int]) -> None:
    """Let a process make what is waiting, from the end; raises what it has raised.

    Neighbours in the list are alike (see `in_turn`): so this one begins at the other end.
    """
    assert process.stdin is not None, "asked for"
    assert process.stdout is not None, "asked for"
    try:
        while (error := pickle.load(process.stdout)) is None:  # of our own process
            try:
                index = waiting.pop()
            except IndexError:
                return
            process.stdin.write(bytes([index]))
            process.stdin.flush()
    except (EOFError, OSError, ValueError, pickle.UnpicklingError):
        raise TargetError(
            f"a process that compiles libraries ended with exit code {process.wait()}",
            hint="name fewer with --libraries, which are compiled one after the other",
        ) from None
    assert isinstance(error, Gemma4CompileError), "all else ends the process"
    raise error


def _job(
    build: Compilation, library: LibraryPlan, path: Path, request: CompileRequest
) -> LibraryJob:
    own = build.of(library)
    dump = None
    if request.dump_ir:
        is_one = len(build.libraries) == 1
        folder = request.dump_ir.beside(request.output)
        digits = 3 if request.dump_ir.each else 2
        dump = Dump(folder if is_one else folder / library.name, digits)
    options = LibraryOptions(
        context_length=own.context_length,
        prefill_chunk=own.prefill_chunk,
        metadata=_metadata(own),
        suppressed=own.suppressed,
        dump=dump.phase if dump else None,
        dump_each=request.dump_ir is not None and request.dump_ir.each,
        dump_kernel=dump.kernel if dump else None,
        probe=request.probe,
        image_rows=own.numbers.image_tokens,
        client_blocks=client_blocks(own.numbers.image_tokens, own.image_shape),
        package=package_digest(provenance_of(own), own.source.checkpoint),
    )
    return LibraryJob(own.config, own.storage, own.recipe, own.target, options, path)


def _metadata(build: Compilation) -> JsonObject:
    """The library's `_metadata`."""
    plan = build.numbers
    return interface.library_metadata(
        model_type=build.model_type,
        quantization=build.quantization,
        context_length=build.context_length,
        prefill_chunk=build.prefill_chunk,
        tensors=build.tensors,
        drafter=[tensor for stored in build.drafter_storage for tensor in stored.tensors],
        required_features=plan.features,
        largest_binding_bytes=plan.largest_binding_bytes,
        device_memory_bytes=plan.device_memory_bytes,
        media=build.media,
        table=_row_table(build),
        embedding=build.embedding,
        client_texts=client_texts(build.config, build.target.device),
        work=_step_work(build),
        rows_as_chunks=_reads_rows_as_chunks(build),
        programmatic_launch=build.target.programmatic_launch,
    )


def _reads_rows_as_chunks(build: Compilation) -> bool:
    """See ROWS_AS_CHUNKS: on CPUs, but of int8 that is made of float16 for a chunk alone."""
    target, made_of = build.target, build.recipe.activation_dtype
    is_same = target.activations != INT8 or made_of == "float32"
    return build.embedding is None and not target.is_gpu and is_same


def _step_work(build: Compilation) -> StepWork | None:
    """What a step does at least; None for an encoder, which has no steps."""
    if build.embedding is not None:
        return None
    return count_step_work(build.config, build.own_storage, build.numbers.layout.dtype)


def _row_table(build: Compilation) -> interface.RowTable | None:
    """The table of per-layer embeddings, where the model has one."""
    for stored in build.own_storage:
        if stored.parameter.role is Role.PER_LAYER_EMBEDDING:
            splits = (
                interface.TableSplit(split.rows, tuple(one.name for one in split.tensors))
                for split in stored.row_splits
            )
            return interface.RowTable(max(build.config.pad_token_id, 0), tuple(splits))
    return None

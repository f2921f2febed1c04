"""`gemma4-compile MODEL --report`: what a recipe rounds away, tensor by tensor; nothing is written.

Weights are read in blocks, stored and read back on all cores, as a conversion does it, so that
memory does not grow with the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass

import numpy as np

from gemma4_compile.checkpoint.drafter import match_drafter, open_drafter, with_drafter
from gemma4_compile.checkpoint.match import match
from gemma4_compile.checkpoint.nonfinite import Counts, nonfinite_lines, open_reader
from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.compile.own_schemes import with_own_schemes
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.compile.usual_recipe import with_usual_recipe
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import ALL_COMPONENTS
from gemma4_compile.progress import Reporter
from gemma4_compile.quantization.convert import (
    RowReader,
    conversion_steps,
    named_by_checkpoint,
    read_parameter_rows,
)
from gemma4_compile.quantization.groups import exact_groups
from gemma4_compile.quantization.recipe import StoredParameter, storage_plan
from gemma4_compile.quantization.recipe_file import check_overrides, with_overrides
from gemma4_compile.quantization.scheme import Float32Array, Scheme
from gemma4_compile.quantization.schemes import MOBILE, NAMED
from gemma4_compile.reports.exact_groups import (
    Exact,
    FourBits,
    exact_lines,
    four_bits,
)
from gemma4_compile.system.parallel import in_order
from gemma4_compile.types import JsonObject

OUTLIER = 4.0  # a group's largest weight over its root mean square; 32 normal ones have 2.4
SHOWN = 20


@dataclass(frozen=True)
class Loss:
    """Cost of storing a matrix.

    Attributes
    ----------
    nbytes : stored
    relative_error : length of the difference over the length of the weights
    largest_error : of one weight
    outlier_groups : share of groups with one weight of OUTLIER times their root mean square
    groups : of weights with a scale each, none in a dense scheme
    exact_groups : those that are held exactly
    """

    scheme: str
    nbytes: int
    relative_error: float
    largest_error: float
    outlier_groups: float
    groups: int
    exact_groups: int


@dataclass(frozen=True)
class ParameterLoss:
    """A parameter's loss; `plain` is what the recipe without overrides would cost, if another.

    Attributes
    ----------
    four_bits : what a scheme of 4 bits would cost, of a matrix of the text decoder that has another
    """

    name: str
    role: str
    shape: tuple[int, ...]
    loss: Loss
    plain: Loss | None
    four_bits: Loss | None


@dataclass
class _Sums:
    """Of the blocks of one parameter in one scheme."""

    error: float = 0.0
    length: float = 0.0
    largest: float = 0.0
    outliers: int = 0
    groups: int = 0
    exact: int = 0

    def add(self, other: _Sums) -> None:
        self.error += other.error
        self.length += other.length
        self.largest = max(self.largest, other.largest)
        self.outliers += other.outliers
        self.groups += other.groups
        self.exact += other.exact


def _block_sums(rows: Float32Array, scheme: Scheme, name: str, first_row: int) -> _Sums:
    stored = scheme.load(scheme.store(rows, name=name, first_row=first_row))
    difference = stored.astype(np.float64) - rows
    sums = _Sums(
        error=float(np.square(difference).sum()),
        length=float(np.square(rows, dtype=np.float64).sum()),
        largest=float(np.abs(difference).max()),
    )
    if scheme.group_size:
        groups = rows.reshape(-1, scheme.group_size)
        largest = np.abs(groups).max(axis=1)
        mean_square = np.square(groups).mean(axis=1)
        sums.outliers = int((largest > OUTLIER * np.sqrt(mean_square)).sum())
        sums.groups = len(groups)
        sums.exact = int(exact_groups(rows, stored, scheme.group_size).sum())
    return sums


def _loss(stored: StoredParameter, scheme: Scheme, sums: _Sums) -> Loss:
    name, shape = stored.parameter.name, stored.parameter.shape
    return Loss(
        scheme=scheme.name,
        nbytes=sum(tensor.nbytes for tensor in scheme.tensors(name, "", shape)),
        relative_error=math.sqrt(sums.error / sums.length) if sums.length else 0.0,
        largest_error=sums.largest,
        outlier_groups=sums.outliers / sums.groups if sums.groups else 0.0,
        groups=sums.groups,
        exact_groups=sums.exact,
    )


def measure(
    plan: Sequence[StoredParameter],
    plain: Mapping[str, Scheme],
    read_rows: RowReader,
    activation_dtype: str,
) -> Iterator[ParameterLoss]:
    """Measure parameters one after the other, each on all cores.

    Parameters
    ----------
    plan : with the schemes to measure, parameters whole
    plain : scheme by parameter name without overrides

    Raises
    ------
    QuantizationError
        If a weight is not finite or too large for its scheme.
    """
    for stored in plan:
        parameter = stored.parameter
        smaller = four_bits(parameter, stored.scheme, activation_dtype)
        wanted = (stored.scheme, plain[parameter.name], smaller)
        schemes = list(dict.fromkeys(scheme for scheme in wanted if scheme is not None))

        def run(
            rows: tuple[int, int],
            stored: StoredParameter = stored,
            schemes: list[Scheme] = schemes,
        ) -> list[_Sums]:
            parameter = stored.parameter
            values = read_parameter_rows(parameter, read_rows, *rows)
            with named_by_checkpoint(parameter, read_rows):
                return [_block_sums(values, s, parameter.name, rows[0]) for s in schemes]

        totals = [_Sums() for _ in schemes]
        blocks = ((step.row_begin, step.row_end) for step in conversion_steps(stored))
        with closing(in_order(run, blocks)) as results:
            for block in results:
                for total, sums in zip(totals, block, strict=True):
                    total.add(sums)
        losses = {s: _loss(stored, s, total) for s, total in zip(schemes, totals, strict=True)}
        before = plain[parameter.name]
        yield ParameterLoss(
            name=parameter.name,
            role=parameter.role.value,
            shape=parameter.shape,
            loss=losses[stored.scheme],
            plain=None if before == stored.scheme else losses[before],
            four_bits=None if smaller is None else losses[smaller],
        )


def report_model(
    request: CompileRequest, reporter: Reporter
) -> tuple[list[ParameterLoss], Counts | None]:
    """Measure a model's weights in the request's recipe; errors as those of `compile_model`.

    Returns
    -------
    tuple
        The losses, and the weights that are not finite and count as 0 here, if they are allowed.
    """
    reporter.stage(f"opening {request.model}")
    with (
        open_source(
            request.model,
            request.revision,
            weights=True,
            modalities=request.modalities,
            adapters=request.adapters,
        ) as source,
        open_drafter(request.drafter, source.config, weights=True) as drafter,
    ):
        assert source.checkpoint is not None, "asked for"
        config = with_drafter(source.config, drafter)
        table = model_parameters(config, ALL_COMPONENTS)
        request = with_usual_recipe(request, source)
        if request.usual_text is not None:
            reporter.stage(f"recipe {request.usual_text}")
        check_overrides(with_overrides(request.quant, request.overrides), table)
        request = with_own_schemes(request, source, table)
        recipe = with_overrides(request.quant, request.overrides)
        matched = match(source.checkpoint.tensors, config)
        if drafter is not None and drafter.checkpoint is not None:
            matched |= match_drafter(drafter.checkpoint, config)
        plan = storage_plan(table, recipe, None)
        is_own = recipe.name == MOBILE.name  # whose overrides are the checkpoint's
        without = recipe if is_own else NAMED[recipe.name]
        plain = {item.name: without.scheme(item) for item in table}
        allowed = request.allow_nonfinite
        read_rows, nonfinite = open_reader(matched, reporter, allow_nonfinite=allowed)
        total = sum(4 * math.prod(item.shape) for item in table)
        found = []
        with reporter.progress("measuring weights", total) as advance:
            for loss in measure(plan, plain, read_rows, recipe.activation_dtype):
                found.append(loss)
                advance(4 * math.prod(loss.shape))
    return found, nonfinite


def report_json(losses: Sequence[ParameterLoss], nonfinite: Counts | None = None) -> JsonObject:
    """The report for programs; `nonfinite_weights` is null where such weights are refused."""
    return {"nonfinite_weights": nonfinite, "parameters": [asdict(loss) for loss in losses]}


def _row(name: str, loss: Loss) -> str:
    return (
        f"{name:<44}{loss.scheme:<10}{loss.nbytes / 2**20:>10.2f}{loss.relative_error:>12.2e}"
        f"{loss.largest_error:>12.2e}{loss.outlier_groups:>10.2%}"
    )


def report_text(losses: Sequence[ParameterLoss], nonfinite: Counts | None = None) -> str:
    """The report for people: totals by role, the parameters that lose most, what was not finite."""
    head = (
        f"{'':<44}{'scheme':<10}{'MiB':>10}{'relative':>12}{'largest':>12}{'outliers':>10}\n"
        f"{'':<44}{'':<10}{'':>10}{'error':>12}{'error':>12}{'groups':>10}"
    )
    lines = [head]
    for role in dict.fromkeys(loss.role for loss in losses):
        of_role = [loss for loss in losses if loss.role == role]
        lines.append(_row(f"{role} ({len(of_role)})", _together(of_role)))
    total = sum(loss.loss.nbytes for loss in losses)
    lines += [f"{'all':<54}{total / 2**20:>10.2f}", "", f"the {SHOWN} that lose most"]
    worst = sorted(losses, key=lambda loss: -loss.loss.relative_error)[:SHOWN]
    lines += [_row(loss.name, loss.loss) for loss in worst]
    changed = [loss for loss in losses if loss.plain is not None]
    if changed:
        lines += ["", "changed by the recipe file: before, after"]
        for loss in changed:
            assert loss.plain is not None
            lines += [_row(loss.name, loss.plain), _row("", loss.loss)]
    lines += exact_lines([(loss.name, loss.role, _exact(loss)) for loss in losses])
    if nonfinite is not None:
        lines += ["", *nonfinite_lines(nonfinite)]
    return "\n".join(lines)


def _exact(loss: ParameterLoss) -> Exact:
    smaller = loss.four_bits
    return Exact(
        loss.loss.groups,
        loss.loss.exact_groups,
        None if smaller is None else FourBits(smaller.scheme, smaller.groups, smaller.exact_groups),
    )


def _together(losses: Sequence[ParameterLoss]) -> Loss:
    """Mean errors of parameters, weighted by their sizes."""
    weights = np.array([math.prod(loss.shape) for loss in losses], np.float64)
    schemes = dict.fromkeys(loss.loss.scheme for loss in losses)
    errors = np.array([loss.loss.relative_error for loss in losses])
    outliers = np.array([loss.loss.outlier_groups for loss in losses])
    return Loss(
        scheme=next(iter(schemes)) if len(schemes) == 1 else "mixed",
        nbytes=sum(loss.loss.nbytes for loss in losses),
        relative_error=float(np.average(errors, weights=weights)),
        largest_error=max(loss.loss.largest_error for loss in losses),
        outlier_groups=float(np.average(outliers, weights=weights)),
        groups=sum(loss.loss.groups for loss in losses),
        exact_groups=sum(loss.loss.exact_groups for loss in losses),
    )

"""`--quant mobile`: the schemes that a checkpoint for phones was stored with, read off its tensors.

They become overrides of the recipe, as those of `--recipe` are: provenance lists them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gemma4_compile.checkpoint.match import match
from gemma4_compile.checkpoint.quantised.phones import stored_form
from gemma4_compile.checkpoint.safetensors_file import TensorInfo, read_rows
from gemma4_compile.checkpoint.sources import ModelSource
from gemma4_compile.compile.released_phones import RELEASED, assumed_schemes
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import QuantizationError, UsageError
from gemma4_compile.model_spec.drafter.parameters import STEM
from gemma4_compile.model_spec.parameters import Parameter, Role, steps_name
from gemma4_compile.options.process import warn
from gemma4_compile.quantization.recipe import FIXED_ROLES
from gemma4_compile.quantization.rows import WHOLE_ROW, RowScheme
from gemma4_compile.quantization.schemes import MOBILE, NAMED, SCHEMES

_WHOLE, _HALVES = "q0f32", "q0bf16"
"""Of what the checkpoint has as floats, and as bfloat16: exactly."""
_TABLE, _TABLES = "q8f32_1", (Role.TOKEN_EMBEDDING, Role.PER_LAYER_EMBEDDING)
"""Of tables that it has whole, on no levels: they are most of its bytes."""
_LEVELS = (2, 4)
"""Bits of the levels that a table may lie on."""
_ROWS = 256
"""Of a table that are read at a time."""
_BLOCK = max(one.block for one in SCHEMES.values() if isinstance(one, RowScheme))
_OTHER = "choose another --quant, such as q8f16"


def with_own_schemes(
    request: CompileRequest, source: ModelSource, table: Sequence[Parameter]
) -> CompileRequest:
    """The request itself, or one with the checkpoint's schemes where the recipe is its own.

    Raises
    ------
    UsageError
        If the recipe is asked for and the checkpoint is another's, or its tensors are not at hand;
        of an adapter for a checkpoint that rounds activations.
    QuantizationError
        If it holds a matrix in a form that no kernel reads.
    """
    if request.probe or request.lock is not None:
        return request  # of a package, which lists them
    if request.adapters and source.config.rounds_activations:
        raise UsageError(
            f"--adapter: `{request.model}` rounds what its layers read and give, to steps of its "
            "own, and what an adapter adds to them would be rounded, too",
            hint="give the checkpoint that the adapter was trained on",
        )
    if request.quant != MOBILE.name:
        _warn_of_rounding(request, source)
        return request
    if not source.config.rounds_activations:
        raise UsageError(
            f"--quant {MOBILE.name}: it is the form of Google's checkpoints for phones, and "
            f"`{request.model}` is none",
            hint="choose another --quant, or give a checkpoint whose name ends in "
            "`-qat-mobile-transformers`",
        )
    if source.checkpoint is None:
        own = _assumed(table, source)
    else:
        own = _overrides(table, match(source.checkpoint.tensors, source.config))
    return replace(
        request,
        overrides=(*(one for one in own if one not in request.overrides), *request.overrides),
    )


def _assumed(table: Sequence[Parameter], source: ModelSource) -> Iterator[tuple[str, str]]:
    """As `_overrides`, of the released checkpoint of the model's size."""
    found = assumed_schemes(source.config, {one.name: one for one in _matrices(table)})
    if found is None:
        raise UsageError(
            f"--quant {MOBILE.name}: the bits of each matrix are read off the checkpoint's "
            "tensors, which --only library, and --plan of a hub id, do without; they are known "
            f"of {', '.join(one.preset for one in RELEASED)} alone",
            hint="leave out --only, or download the checkpoint and give its directory",
        )
    for parameter in _matrices(table):
        if found[parameter.name] != MOBILE.scheme(parameter).name:
            yield parameter.name, found[parameter.name]


def _matrices(table: Sequence[Parameter]) -> Iterator[Parameter]:
    """Parameters whose scheme is the checkpoint's."""
    for parameter in table:
        if parameter.role not in FIXED_ROLES and not parameter.name.startswith(STEM):
            yield parameter


def _warn_of_rounding(request: CompileRequest, source: ModelSource) -> None:
    """Say that a recipe rounds weights that have few levels already."""
    schemes = NAMED[request.quant].all_schemes
    if source.config.rounds_activations and any(one.group_size for one in schemes):
        warn(
            f"--quant {request.quant} rounds again what a checkpoint for phones has rounded before",
            f"--quant {MOBILE.name}, their default, holds its weights exactly, in fewer bytes",
        )


def _overrides(
    table: Sequence[Parameter], matched: Mapping[str, TensorInfo]
) -> Iterator[tuple[str, str]]:
    """Names of matrices whose scheme is not the recipe's, with theirs."""
    steps = {one.name: one for one in table}
    for parameter in _matrices(table):
        own = steps.get(steps_name(parameter.name))
        scheme = _scheme_of(parameter, matched, own is None or _is_fixed(own, matched))
        if scheme != MOBILE.scheme(parameter).name:
            yield parameter.name, scheme


def _scheme_of(
    parameter: Parameter, matched: Mapping[str, TensorInfo], has_input_step: bool
) -> str:
    """The scheme that holds the integers of all sources of a matrix."""
    tensors = [matched[source.name] for source in parameter.sources]
    forms = [stored_form(tensor) for tensor in tensors]
    is_whole = all(tensor.decoder is None for tensor in tensors)
    if is_whole and parameter.role in _TABLES:
        forms = [_form_of_levels(tensor) for tensor in tensors]
        if None in forms:
            return _TABLE
    elif is_whole:
        is_bfloat16 = all(tensor.dtype == "BF16" for tensor in tensors)
        return _HALVES if is_bfloat16 and parameter.shape[1] % 2 == 0 else _WHOLE
    found = [form for form in forms if form is not None]
    bits = max((bits for bits, _ in found), default=0)
    is_whole_row = all(columns == parameter.shape[1] for _, columns in found)
    any_inputs = is_whole_row and not has_input_step
    name = RowScheme(bits, WHOLE_ROW if is_whole_row else _BLOCK, any_inputs).name
    is_held = is_whole_row or all(columns % _BLOCK == 0 for _, columns in found)
    if len(found) < len(forms) or not is_held or name not in SCHEMES:
        raise QuantizationError(
            f"`{parameter.name}` is stored in {' and '.join(sorted(map(_text, set(forms))))}, "
            f"which --quant {MOBILE.name} does not hold",
            hint=_OTHER,
        )
    return name


def _form_of_levels(table: TensorInfo) -> tuple[int, int] | None:
    """As `stored_form`, of a whole table whose rows are levels of steps; None of another one.

    bfloat16 holds the products of 2 bits exactly, and those of 4 seldom.
    """
    columns = table.shape[1]
    for bits, block in itertools.product(_LEVELS, (WHOLE_ROW, _BLOCK)):
        scheme = RowScheme(bits, block)
        if scheme.holds(columns) and _is_exact(scheme, table):
            return bits, block or columns
    return None


def _is_exact(scheme: RowScheme, table: TensorInfo) -> bool:
    """Return whether a scheme holds every row as it is."""
    return all(
        scheme.is_exact(read_rows(table, begin, min(begin + _ROWS, table.row_count)))
        for begin in range(0, table.row_count, _ROWS)
    )


def _is_fixed(steps: Parameter, matched: Mapping[str, TensorInfo]) -> bool:
    """Return whether the checkpoint rounds what the matrix with these steps is multiplied by."""
    return bool(read_rows(matched[steps.sources[0].name], 0, 1).ravel()[0])


def _text(form: tuple[int, int] | None) -> str:
    """A form in messages."""
    return "another form" if form is None else f"{form[0]} bits with a step for {form[1]} columns"

"""Recipes: which parameter gets which scheme, and how large tensors are split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from gemma4_compile.errors import QuantizationError
from gemma4_compile.model_spec.parameters import Parameter, Role
from gemma4_compile.quantization.scheme import Scheme, StoredTensor

FIXED_ROLES = (Role.VECTOR, Role.ROUTER)
"""Of a few bytes on which everything that follows depends: no pattern changes their scheme."""
TOWER_ROLES = (Role.VISION_LINEAR, Role.AUDIO_LINEAR)
"""Of matrices whose steps are those of `small`; dense where groups do not fit or rows are short."""
MIN_TOWER_COLS = 256
ROW_ALIGNMENT = 64  # rows of a row split are a multiple of it: a GEMM tile lies in one


@dataclass(frozen=True)
class Recipe:
    """A named choice of schemes.

    Attributes
    ----------
    activation_dtype : dtype of matmul inputs that a norm or an attention bounds, and of K and V;
        everything else (residual stream, norms, softmax, logits, sums, unbounded matmul inputs) is
        float32
    schemes : scheme by role; Role.VECTOR is always float32
    patterns : other schemes for the matrices that a pattern names; the last match counts
    overrides : more of them, of a user, which count before those
    """

    name: str
    activation_dtype: str
    schemes: Mapping[Role, Scheme]
    patterns: tuple[tuple[str, Scheme], ...] = ()
    overrides: tuple[tuple[str, Scheme], ...] = ()

    def scheme(self, parameter: Parameter) -> Scheme:
        """Storage scheme of a parameter.

        A matrix of a media part that groups do not divide, or that is narrow, is dense; one that a
        pattern names only where groups do not divide it.
        """
        named = self._named(parameter)
        scheme = self.schemes[parameter.role] if named is None else named
        if parameter.role in TOWER_ROLES and scheme.group_size:
            cols = parameter.shape[-1]
            if (named is None and cols < MIN_TOWER_COLS) or cols % scheme.group_size:
                return scheme.dense
        return scheme

    def _named(self, parameter: Parameter) -> Scheme | None:
        """The scheme of the last pattern that names the parameter, if it is a matrix."""
        if parameter.role in FIXED_ROLES:
            return None
        for pattern, scheme in reversed((*self.patterns, *self.overrides)):
            if fnmatchcase(parameter.name, pattern):
                return scheme
        return None

    def computed_in(self, dtype: str) -> Recipe:
        """The recipe of the same weights with other activations."""
        return replace(self, activation_dtype=dtype)

    @property
    def has_float16(self) -> bool:
        """Return whether weights are stored as float16, or activations are."""
        stored = any("float16" in one.dtypes for one in self.all_schemes)
        return stored or self.activation_dtype == "float16"

    @property
    def takes_int8(self) -> bool:
        """Return whether vectors of int8 can meet most of its matrices."""
        return self.schemes[Role.LINEAR].takes_int8

    @property
    def all_schemes(self) -> tuple[Scheme, ...]:
        """Every scheme that a parameter may have."""
        named = (scheme for _, scheme in (*self.patterns, *self.overrides))
        return (*self.schemes.values(), *named)


@dataclass(frozen=True)
class RowSplit:
    """Rows [row_begin, row_end) of a parameter and the tensors that hold them."""

    row_begin: int
    row_end: int
    tensors: tuple[StoredTensor, ...]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.row_end - self.row_begin


@dataclass(frozen=True)
class StoredParameter:
    """A parameter, its scheme, and its row splits: one, unless the binding limit asks for more."""

    parameter: Parameter
    scheme: Scheme
    row_splits: tuple[RowSplit, ...]

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        """All stored tensors, row split by row split."""
        return tuple(tensor for split in self.row_splits for tensor in split.tensors)


def _alignment(parameter: Parameter) -> int:
    """Rows of a row split are a multiple of this."""
    return parameter.row_group if parameter.row_group > 1 else ROW_ALIGNMENT


def _rows_per_part(parameter: Parameter, scheme: Scheme, max_binding_bytes: int) -> int:
    row = scheme.tensors(parameter.name, "", (1, *parameter.shape[1:]))
    fitting = max_binding_bytes // max(tensor.nbytes for tensor in row)
    alignment = _alignment(parameter)
    aligned = fitting // alignment * alignment
    if aligned == 0:
        raise QuantizationError(
            f"`{parameter.name}`: {alignment} rows do not fit into one binding of "
            f"{max_binding_bytes} bytes ({fitting} do)",
            hint="choose a smaller recipe or limits with larger bindings",
        )
    return aligned


def _store(parameter: Parameter, scheme: Scheme, max_binding_bytes: int | None) -> StoredParameter:
    whole = scheme.tensors(parameter.name, "", parameter.shape)
    rows = parameter.shape[0]
    if max_binding_bytes is None or max(tensor.nbytes for tensor in whole) <= max_binding_bytes:
        return StoredParameter(parameter, scheme, (RowSplit(0, rows, whole),))
    limit = _rows_per_part(parameter, scheme, max_binding_bytes)
    count = -(-rows // limit)
    alignment = _alignment(parameter)
    size = -(-rows // (count * alignment)) * alignment  # splits of about equal size
    splits = []
    for index, begin in enumerate(range(0, rows, size)):
        end = min(begin + size, rows)
        shape = (end - begin, *parameter.shape[1:])
        splits.append(RowSplit(begin, end, scheme.tensors(parameter.name, f".part{index}", shape)))
    return StoredParameter(parameter, scheme, tuple(splits))


def storage_plan(
    parameters: Sequence[Parameter], recipe: Recipe, max_binding_bytes: int | None
) -> tuple[StoredParameter, ...]:
    """Choose schemes and split what is larger than a binding, by rows.

    The order of all stored tensors is the order of the library's parameter tuple.

    Raises
    ------
    QuantizationError
        If a matrix does not fit its scheme, or the rows that stay together do not fit a binding.
    """
    return tuple(
        _store(parameter, recipe.scheme(parameter), max_binding_bytes) for parameter in parameters
    )

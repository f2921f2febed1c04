"""Cuts a prompt into prefill chunks, and never through a picture whose rows see one another.

Such models (12B, 26B-A4B, 31B with image input) attend from a picture's first row to its last, so
that all its keys have to be there: `Gemma4Config.whole_images`. Everything else (text, sounds, and
pictures of E2B and E4B) is causal and may be cut anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gemma4_compile import abi
from gemma4_compile.errors import UsageError


def chunks(
    modality: Sequence[int],
    longest: int,
    *,
    whole_images: bool,
    begin: int = 0,
    places: Collection[int] = (),
) -> list[slice]:
    """Return the rows of each chunk, in order.

    Parameters
    ----------
    modality : of every row of the prompt, `abi.MODALITY_TEXT` and so on
    longest : rows that one chunk may have
    whole_images : keep each run of rows of `abi.MODALITY_MEDIA` in one chunk
    begin : rows that have no chunk
    places : numbers of rows after which a chunk ends, too; before a picture that would be cut there

    Raises
    ------
    UsageError
        If a picture is longer than a chunk and has to be whole.
    """
    found = []
    if whole_images:
        places = {whole_rows(modality, place) for place in places}
    while begin < len(modality):
        following = (place for place in places if place > begin)
        end = min(begin + longest, len(modality), *following)
        if whole_images:
            end = whole_rows(modality, end)
            if end <= begin:
                _refuse(modality, begin, longest)
        found.append(slice(begin, end))
        begin = end
    return found


def whole_rows(modality: Sequence[int], count: int) -> int:
    """Return how many of the first `count` rows remain if a picture cut by their end is left out.

    Where pictures have to be whole, a state can be taken back to so many rows and no further: the
    rows of a picture have seen those that would be gone.
    """
    if not 0 < count < len(modality):
        return count
    end = count
    if modality[end] == abi.MODALITY_MEDIA:
        while end and modality[end - 1] == abi.MODALITY_MEDIA:
            end -= 1
    return end


def _refuse(modality: Sequence[int], begin: int, longest: int) -> None:
    end = begin
    while end < len(modality) and modality[end] == abi.MODALITY_MEDIA:
        end += 1
    count = end - begin
    raise UsageError(
        f"a picture of {count} rows does not fit into a prefill chunk of {longest}: this model "
        "reads a picture as a whole",
        hint=f"compile with --prefill-chunk {count} or more, or give the picture fewer "
        "tokens: --image-tokens",
    )

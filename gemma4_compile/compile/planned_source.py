"""What a plan reads of a model: its config, and nothing that would have to be downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from gemma4_compile.checkpoint.drafter import open_drafter, with_drafter
from gemma4_compile.checkpoint.local_path import local_path
from gemma4_compile.checkpoint.sources import ModelSource, open_source
from gemma4_compile.compile.released_phones import as_phone
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.options.package import MOBILE


@contextmanager
def open_for_plan(request: CompileRequest) -> Iterator[ModelSource]:
    """The model of a request, its drafter in its config.

    Tensors are listed where the recipe is read off them and they are here already.

    Raises
    ------
    Gemma4CompileError
        As `open_source` and `open_drafter`.
    """
    with (
        open_source(
            request.model,
            request.revision,
            weights=request.quant == MOBILE and local_path(request.model).is_dir(),
            generation_config=False,
            modalities=request.modalities,
            adapters=request.adapters,
        ) as source,
        open_drafter(request.drafter, source.config, weights=False) as drafter,
    ):
        source = as_phone(request, source)
        yield replace(source, config=with_drafter(source.config, drafter))

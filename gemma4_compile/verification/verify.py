"""Verification of a package, of a decoder or of an encoder."""

from __future__ import annotations

from pathlib import Path

from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.device_kinds import is_of_pages
from gemma4_compile.package.interface import embeds
from gemma4_compile.progress import Reporter
from gemma4_compile.targets import target_spec
from gemma4_compile.types import JsonObject
from gemma4_compile.verification.encoder import (
    SCHEMA,
    EncoderReport,
    check_native,
    encoder_table,
    verify_encoder,
)
from gemma4_compile.verification.numerics_report import (
    NumericsReport,
    check_tools,
    verify_package,
)
from gemma4_compile.verification.report import table
from gemma4_compile.verification.subject import VerifyRequest, provenance_of


def check_verify(request: CompileRequest, node_modules: Path | None) -> None:
    """Report what keeps a package from being verified that is to be compiled.

    Raises
    ------
    Gemma4CompileError
        As `check_tools`; also for an encoder's package whose main library is for browsers.
    """
    device = target_spec(request.target).device
    if is_of_pages(device):
        with open_source(
            request.model, request.revision, weights=False, generation_config=False
        ) as source:
            if source.config.embedding is not None:
                check_native(device, request.target)
    check_tools(device, node_modules)


def verify(request: VerifyRequest, reporter: Reporter) -> NumericsReport | EncoderReport:
    """As `verify_package` or, of an encoder, `verify_encoder`."""
    if embeds(provenance_of(request.package).build):
        return verify_encoder(request, reporter)
    return verify_package(request, reporter)


def shown(content: JsonObject, *, layers: bool = True) -> str:
    """A report as text; with `layers`, a line for each of a decoder."""
    if content["schema"] == SCHEMA:
        return encoder_table(content)
    return table(content, layers=layers)

"""Verification of a package, of a decoder or of an encoder."""

from __future__ import annotations

from gemma4_compile.package.interface import embeds
from gemma4_compile.progress import Reporter
from gemma4_compile.types import JsonObject
from gemma4_compile.verification.encoder import (
    SCHEMA,
    EncoderReport,
    encoder_table,
    verify_encoder,
)
from gemma4_compile.verification.numerics_report import NumericsReport, verify_package
from gemma4_compile.verification.report import table
from gemma4_compile.verification.subject import VerifyRequest, provenance_of


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

"""From the config to an executable: Relax passes, their order, and the checks on their result."""

from gemma4_compile.build import (
    LibraryOptions,
    LibraryReport,
    build_executable,
    library_report,
)
from gemma4_compile.passes.lowering import lower

__all__ = ["LibraryOptions", "LibraryReport", "build_executable", "library_report", "lower"]

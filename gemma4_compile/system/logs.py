"""The log of all commands: on stderr, from the level that GEMMA4_LOG names; without it, silent.

Modules write to `logging.getLogger(__name__)`. Nothing else sets a level or a handler.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from gemma4_compile.errors import UsageError

VARIABLE = "GEMMA4_LOG"
LEVELS = ("debug", "info", "warning", "error")
"""From the one that says most."""


def set_up(environment: Mapping[str, str] = os.environ) -> None:
    """Write the log from the level that the environment names; UsageError for none of LEVELS.

    Without the variable nothing is loaded and nothing changed: warnings are lines on stderr, as
    Python writes them.
    """
    given = environment.get(VARIABLE, "").strip()
    if not given:
        return
    if given.lower() not in LEVELS:
        raise UsageError(
            f"{VARIABLE}: expected one of {', '.join(LEVELS)}, found `{given[:40]}`",
            hint=f"set {VARIABLE} to one of them, or unset it for warnings alone",
        )
    from gemma4_compile.system.log_lines import write_from

    write_from(given.upper())

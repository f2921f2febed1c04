"""The shipped tokenizer is the one that the corpus gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gemma4_compile.tiny.checkpoint import shipped_file

SCRIPT = Path(__file__).parents[3] / "tools" / "build_tiny_tokenizer.py"


def test_shipped_tokenizer_is_what_the_script_writes() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "-"], capture_output=True, check=True)
    assert done.stdout == shipped_file("tokenizer.json")

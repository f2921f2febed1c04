"""`python -m gemma4_compile` is `gemma4-compile`."""

import sys

from gemma4_compile.cli.start import run_compile

if __name__ == "__main__":
    sys.exit(run_compile())

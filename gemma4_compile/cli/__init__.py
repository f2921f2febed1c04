"""The command `gemma4-compile`, its progress, and where all commands begin."""

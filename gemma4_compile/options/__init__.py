"""The arguments of all commands and what can be wrong with them; loads nothing heavy."""

"""The text decoder."""

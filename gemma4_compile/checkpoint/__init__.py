"""Checkpoints: where they come from, their files, and tensors by the names of parameters."""

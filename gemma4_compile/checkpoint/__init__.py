"""Checkpoints: where they come from, their files, and their tensors by the names of the parameters."""

"""Checkpoints whose weights were quantised before: each format's tensors, read as the weights."""

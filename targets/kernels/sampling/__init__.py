"""Kernels from logits to a token."""

"""Kernels of attention over the KV state."""

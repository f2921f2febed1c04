"""Kernels of the sound input."""

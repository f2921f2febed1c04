"""Kernels of the end of a drafter."""

"""Kernels of norms."""

"""Passes from the exported module to kernels."""

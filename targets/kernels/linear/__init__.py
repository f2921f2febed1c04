"""Kernels of matmuls and row lookup on stored weights."""

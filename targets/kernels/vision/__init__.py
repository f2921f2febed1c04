"""Kernels around the layers of a vision tower, and of the patch projection without one."""

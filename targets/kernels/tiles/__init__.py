"""Tiles of matrices in shared memory and on tensor cores."""

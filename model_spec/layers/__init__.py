"""Layers that components share."""

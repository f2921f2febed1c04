"""Gemma 3n's text decoder: several residual streams, of which a layer runs on one."""

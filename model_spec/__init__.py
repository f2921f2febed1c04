"""Gemma 4: configuration, parameter table and the Relax modules built from them."""

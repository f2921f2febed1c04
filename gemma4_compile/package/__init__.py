"""Packages: the files of one, and how they are written whole or not at all."""

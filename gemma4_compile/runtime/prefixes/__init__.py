"""Beginnings of prompts that are kept: which there are, their rows, and their files."""

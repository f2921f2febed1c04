"""Conversations on one engine, and as files."""

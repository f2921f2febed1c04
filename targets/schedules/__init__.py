"""Dlight schedule rules and their order per target."""

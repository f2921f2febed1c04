"""Replies held to a JSON schema or to tool calls."""

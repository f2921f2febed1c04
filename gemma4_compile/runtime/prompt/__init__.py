"""Conversations as token ids."""

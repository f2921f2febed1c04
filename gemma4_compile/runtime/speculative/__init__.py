"""Speculative decoding: the drafter, and how many tokens it drafts."""

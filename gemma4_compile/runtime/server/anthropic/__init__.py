"""Anthropic's Messages API over the chats of this server."""

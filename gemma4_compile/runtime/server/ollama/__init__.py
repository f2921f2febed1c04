"""Ollama's API over the chats and texts of this server."""

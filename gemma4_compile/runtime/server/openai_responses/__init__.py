"""OpenAI's Responses API over the chats of this server."""

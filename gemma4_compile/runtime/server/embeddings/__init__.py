"""Embeddings of texts in the words of OpenAI's and Ollama's clients."""

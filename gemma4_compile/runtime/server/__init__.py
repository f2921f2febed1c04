"""`gemma4-serve`: an OpenAI-compatible API, and pages, over a compiled package."""

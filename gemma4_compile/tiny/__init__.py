"""The small trained model that ships with the project, and its drafter."""

from gemma4_compile.tiny.checkpoint import materialize, materialize_drafter

__all__ = ["materialize", "materialize_drafter"]

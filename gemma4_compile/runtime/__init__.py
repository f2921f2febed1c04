"""Runs a compiled package in Python: engine, sampling and chat. Imports no compiler."""

from gemma4_compile.runtime.chat import Chat, Reply
from gemma4_compile.runtime.engine import ContextFullError, Engine
from gemma4_compile.runtime.package import Package
from gemma4_compile.runtime.sampling import Sampler, SamplingOptions

__all__ = [
    "Chat",
    "ContextFullError",
    "Engine",
    "Package",
    "Reply",
    "Sampler",
    "SamplingOptions",
]

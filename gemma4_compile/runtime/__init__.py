"""Runs a compiled package in Python: engine, sampling and chat. Imports no compiler."""

from gemma4_compile.runtime.chat.chat import Chat, Reply
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.engine.sequence import ContextFullError
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.sampling.sampling import Sampler, SamplingOptions

__all__ = [
    "Chat",
    "ContextFullError",
    "Engine",
    "Package",
    "Reply",
    "Sampler",
    "SamplingOptions",
]

"""The former place of `gemma4_compile.runtime.reply.tool_calls`, for scripts that import it."""

import warnings

from gemma4_compile.runtime.reply.tool_calls import (
    Number,
    ToolCall,
    ToolCallError,
    parse_tool_call,
    parse_tool_calls,
)

__all__ = ["Number", "ToolCall", "ToolCallError", "parse_tool_call", "parse_tool_calls"]

warnings.warn(
    f"{__name__} has moved: import {parse_tool_call.__module__}", DeprecationWarning, stacklevel=2
)

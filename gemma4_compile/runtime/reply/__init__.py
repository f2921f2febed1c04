"""A reply as its tokens come: text, reasoning, tool calls, where it ends."""

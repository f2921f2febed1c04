"""Chat templates: rendered in a sandbox, watched, and what they read."""

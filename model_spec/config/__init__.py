"""The checkpoint's `config.json`: a section of it for each component, and the whole."""

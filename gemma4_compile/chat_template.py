"""The former place of `gemma4_compile.template.chat_template`, for scripts that import it."""

import warnings

from gemma4_compile.template.chat_template import (
    ChatTemplate,
    TemplateMessage,
    named_tokens,
    special_tokens,
    templates_of,
)

__all__ = ["ChatTemplate", "TemplateMessage", "named_tokens", "special_tokens", "templates_of"]

warnings.warn(
    f"{__name__} has moved: import {ChatTemplate.__module__}", DeprecationWarning, stacklevel=2
)

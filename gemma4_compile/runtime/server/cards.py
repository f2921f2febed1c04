"""What the API tells of a model: in a list of one, or of several that share a server."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from gemma4_compile.options.serve import LATEST
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.template.chat_template import ChatTemplate
from gemma4_compile.types import JsonObject

ANTHROPIC_VERSION = "anthropic-version"
"""A header of Anthropic's clients."""
_SHOWN_NAME = 100  # characters of a model's name in an error or a note
EMBEDS = "embedding"
"""The capability of an encoder, in Ollama's word."""
_OF_TEMPLATES = (("tools", "tools"), ("enable_thinking", "thinking"))
"""Variables that a template reads, and what Ollama's clients call it."""


@dataclass(frozen=True)
class ModelCard:
    """A model as lists show it.

    Attributes
    ----------
    context_length : most tokens of a prompt and its reply
    capabilities : in Ollama's words
    """

    name: str
    context_length: int
    capabilities: tuple[str, ...]

    @classmethod
    def of(
        cls, name: str, context_length: int, template: ChatTemplate | None, *, sees: bool
    ) -> ModelCard:
        """Of what is known of a package.

        Parameters
        ----------
        sees : it takes pictures
        """
        read = frozenset() if template is None else template.variables
        found = [name for variable, name in _OF_TEMPLATES if variable in read]
        return cls(name, context_length, ("completion", *found, *(["vision"] if sees else [])))

    @classmethod
    def of_package(cls, package: Package, name: str, context_length: int | None) -> ModelCard:
        """Of a package whose weights are not loaded; ArtifactError for a damaged template."""
        if package.embeds:
            length = context_length or package.chat_config.context_window_size
            return cls(name, length, (EMBEDS,))
        template = package.chat_template() if package.has_chat_template else None
        length = context_length or package.chat_config.context_window_size
        return cls.of(name, length, template, sees="image" in package.modalities)

    @property
    def embeds(self) -> bool:
        """Return whether it makes embeddings, and no replies."""
        return EMBEDS in self.capabilities

    def openai(self) -> JsonObject:
        """The object of `/v1/models`."""
        return {
            "id": self.name,
            "object": "model",
            "created": 0,
            "owned_by": "gemma4-compile",
            "context_length": self.context_length,
        }

    def anthropic(self) -> JsonObject:
        """The object of `/v1/models` for Anthropic's clients."""
        return {
            "id": self.name,
            "type": "model",
            "display_name": self.name,
            "created_at": "1970-01-01T00:00:00Z",
            "lifecycle": "active",
            "max_input_tokens": self.context_length,
        }


def no_replies(name: str) -> ApiError:
    """The error of a request for a reply to a model that makes embeddings."""
    return ApiError(
        400,
        f"`{name}` makes embeddings of texts, and no replies: ask /v1/embeddings or /api/embed of "
        "it, and a model of replies here",
        param="model",
        code="unsupported_value",
    )


def no_embeddings(name: str) -> ApiError:
    """The error of a request for embeddings to a model that makes replies."""
    return ApiError(
        400,
        f"`{name}` makes replies and no embeddings: ask a model that embeds, such as a package of "
        "google/embeddinggemma-2",
        param="model",
        code="unsupported_value",
    )


def is_called(own: str, asked: str) -> bool:
    """Return whether a name of a request is a model's own, as some clients write it."""
    return asked.removesuffix(LATEST) == own.removesuffix(LATEST)


def unknown_model(asked: str, *known: str) -> str:
    """What is said of a name that is none of a server's."""
    if len(asked) > _SHOWN_NAME:  # it stands in every chunk of a stream
        asked = f"{asked[:_SHOWN_NAME]}..."
    names = ", ".join(f"`{name}`" for name in known)
    return f"the model `{asked}` does not exist; this server has {names}"


def card_object(card: ModelCard, headers: Container[str]) -> JsonObject:
    """A model in the form that the client of a request reads."""
    return card.anthropic() if ANTHROPIC_VERSION in headers else card.openai()


def card_list(objects: Sequence[JsonObject], headers: Container[str]) -> JsonObject:
    """Such objects as the answer of `/v1/models`."""
    if ANTHROPIC_VERSION not in headers:
        return {"object": "list", "data": [*objects]}
    first, last = objects[0]["id"], objects[-1]["id"]
    return {"data": [*objects], "has_more": False, "first_id": first, "last_id": last}

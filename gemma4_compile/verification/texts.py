"""The texts that ship, each of another form, as tokens: what a model is asked for is not one text.

They are in `texts/`, ours as all of the project. The long document begins with `text.txt`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from gemma4_compile.checkpoint.chat_files import ChatFiles
from gemma4_compile.checkpoint.files import TOKENIZER_FILE
from gemma4_compile.confined.conversation import ConversationError, load_tokenizer
from gemma4_compile.confined.dialogues import Said
from gemma4_compile.errors import CheckpointError, UsageError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.config.variants import NO_TOKEN
from gemma4_compile.options.verify import CHAT, CODE, DOCUMENT, SCRIPT
from gemma4_compile.runtime.prompt.prompt import longest_token_bytes
from gemma4_compile.template.chat_template import ChatTemplate
from gemma4_compile.types import JsonObject
from gemma4_compile.verification.prompt import TEXT_FILE, encode

FOLDER = Path(__file__).parent / "texts"
GIVEN = "given"  # the text of --text
_SHIPPED = 1 << 16  # letters that the longest text that ships does not have
_PLAIN = {
    DOCUMENT: (TEXT_FILE, FOLDER / "document.txt"),
    CODE: (FOLDER / "code.txt",),
    SCRIPT: (FOLDER / "script.txt",),
}


def plain_text(name: str) -> str:
    """A text that is no conversation."""
    return "\n".join(path.read_text("utf-8") for path in _PLAIN[name])


@dataclass(frozen=True)
class FormText:
    """A text as tokens.

    Attributes
    ----------
    sha256 : of the whole text, as it is written before it is cut
    ids : as many as there is room for, what begins a sequence among them
    cut : tokens of the text that were left out; of a long one of the user's at least so many
    """

    name: str
    sha256: str
    ids: tuple[int, ...]
    cut: int

    @property
    def following(self) -> list[int | None]:
        """The text's next token after each position."""
        return [*self.ids[1:], None]

    def to_json(self) -> JsonObject:
        """As it is in reports."""
        return {"sha256": self.sha256, "tokens": len(self.ids), "cut_tokens": self.cut}


@dataclass(frozen=True)
class Reader:
    """Makes tokens of texts.

    Attributes
    ----------
    template : None for a base model, which has no form of a chat
    first : what begins a sequence, an id or nothing
    room : most tokens of a text
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    first: tuple[int, ...]
    room: int

    def text(self, name: str, text: str) -> FormText | None:
        """A text that is no conversation; None if it has no tokens."""
        # Of a text of megabytes no more is encoded than there is room for.
        most = max((self.room + 1) * longest_token_bytes(self.tokenizer), _SHIPPED)
        return self._cut(name, text, [*self.first, *encode(self.tokenizer, text[:most])])

    def conversation(self) -> FormText | None:
        """The chat as the template writes it; None if there is no template, or it refuses it."""
        if self.template is None:
            return None
        said = json.loads((FOLDER / "chat.json").read_text("utf-8"))
        try:
            text = self.template.render([Said(**message) for message in said])
        except UsageError:
            return None
        return self._cut(CHAT, text, encode(self.tokenizer, text))

    def _cut(self, name: str, text: str, ids: Sequence[int]) -> FormText | None:
        kept = tuple(ids[: self.room])
        digest = hashlib.sha256(text.encode()).hexdigest()
        return FormText(name, digest, kept, len(ids) - len(kept)) if len(kept) > 1 else None

    def read(self, names: Sequence[str]) -> Iterator[FormText]:
        """The texts of these names, in their order; those that cannot be made are left out."""
        for name in names:
            found = self.conversation() if name == CHAT else self.text(name, plain_text(name))
            if found is not None:
                yield found


def open_reader(directory: Path, config: Gemma4Config, room: int) -> Reader:
    """Reader of texts with the tokenizer and the chat template of a checkpoint or a package.

    Parameters
    ----------
    room : most tokens of a text

    Raises
    ------
    CheckpointError
        If the tokenizer cannot be loaded, has tokens that the model has not, or cannot hold a
        conversation with the chat template.
    """
    files = ChatFiles.read(directory)
    files.try_conversation(config.vocab_size)
    try:
        tokenizer = load_tokenizer(directory / TOKENIZER_FILE)
    except ConversationError as error:
        raise CheckpointError(
            str(error), hint="save the tokenizer again, with save_pretrained"
        ) from error
    template = None
    if files.template is not None:
        template = ChatTemplate(files.template, files.special_tokens, files.tool_use)
    first = () if config.bos_token_id == NO_TOKEN else (config.bos_token_id,)
    return Reader(tokenizer, template, first, room)

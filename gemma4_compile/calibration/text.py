"""The text that a model is calibrated on, as ids: a user's, or prompts that it goes on from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from gemma4_compile.confined.conversation import ConversationError, load_tokenizer
from gemma4_compile.errors import CheckpointError, UsageError
from gemma4_compile.model_spec.config.variants import NO_TOKEN
from gemma4_compile.options import given_text
from gemma4_compile.verification.prompt import encode

PROMPTS_FILE = Path(__file__).parent / "prompts.txt"
SEGMENT = 256  # tokens of a sequence
MAX_SEGMENTS = 64
MIN_TOKENS = 128
_OPEN, _CLOSE = "<|turn>", "<turn|>"
OPTION = "--calibrate"
_HINT = (
    f"give a text of {SEGMENT * MAX_SEGMENTS} tokens or more, or no file: the model then writes "
    "its own"
)

Rows = list[list[int]]


def read_file(path: Path) -> str:
    """Text of a file; UsageError if it is none, or empty."""
    text = given_text.read_text(OPTION, path)
    if not text.strip():
        raise UsageError(f"{OPTION}: `{path}` is empty", hint=_HINT)
    if "\0" in text:
        raise UsageError(
            f"{OPTION}: `{path}` is no text: it holds a zero byte", hint="give a text file"
        )
    return text


@dataclass(frozen=True)
class TextReader:
    """Turns text into sequences for one model."""

    tokenizer: Tokenizer
    first: tuple[int, ...]

    @classmethod
    def open(cls, path: Path, bos: int) -> TextReader:
        """With the tokenizer of a file; CheckpointError if it cannot be loaded."""
        try:
            tokenizer = load_tokenizer(path)
        except ConversationError as error:
            raise CheckpointError(
                str(error), hint="save the tokenizer of the model again"
            ) from error
        return cls(tokenizer, () if bos == NO_TOKEN else (bos,))

    def given(self, path: Path, vocab_size: int) -> Rows:
        """Sequences of a user's text: of a long one, some from all of it.

        Control tokens that the text spells are tokens, so that conversations can be given.

        Raises
        ------
        UsageError
            If the file is no text, or too short to say anything.
        """
        ids = self._ids(read_file(path))
        wrong = [one for one in ids if one >= vocab_size]
        if wrong:
            raise UsageError(
                f"{OPTION}: `{path}` spells token {wrong[0]}, the model has {vocab_size} tokens",
                hint="leave that token out",
            )
        if len(ids) < MIN_TOKENS:
            raise UsageError(
                f"{OPTION}: `{path}` has {len(ids)} tokens, expected {MIN_TOKENS} at least",
                hint=_HINT,
            )
        size = SEGMENT - len(self.first)
        begins = list(range(0, len(ids), size))
        if len(ids) - begins[-1] < MIN_TOKENS and len(begins) > 1:
            begins.pop()
        count = min(len(begins), MAX_SEGMENTS)
        taken = [begins[index * len(begins) // count] for index in range(count)]
        return [[*self.first, *ids[begin : begin + size]] for begin in taken]

    def prompts(self, vocab_size: int) -> Rows:
        """The beginnings that ship, as turns of a conversation where the model knows turns."""
        lines = PROMPTS_FILE.read_text("utf-8").splitlines()
        if self.tokenizer.token_to_id(_OPEN) is not None:
            lines = [f"{_OPEN}user\n{line}{_CLOSE}\n{_OPEN}model\n" for line in lines]
        rows = [[*self.first, *self._ids(line)] for line in lines]
        return [row for row in rows if row and max(row) < vocab_size]

    def ends(self, stops: Iterable[int]) -> frozenset[int]:
        """Tokens that end what a model writes: `stops`, and the end of a turn."""
        close = self.tokenizer.token_to_id(_CLOSE)
        return frozenset((*stops, *(() if close is None else (close,))))

    def _ids(self, text: str) -> list[int]:
        return encode(self.tokenizer, text, option=OPTION, hint="give another text")

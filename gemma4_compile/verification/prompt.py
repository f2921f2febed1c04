"""The text that packages are tried on, as tokens, and what is run on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from gemma4_compile.confined.conversation import ConversationError, load_tokenizer
from gemma4_compile.errors import ArtifactError, UsageError, is_panic
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.config.variants import NO_TOKEN
from gemma4_compile.options import given_text
from gemma4_compile.runtime.prompt.prompt import longest_token_bytes
from gemma4_compile.verification.runners import Step

TEXT_FILE = Path(__file__).parent / "text.txt"
_BEYOND_WINDOWS = 8  # tokens by which the long prompt passes two windows


@dataclass(frozen=True)
class Prompt:
    """The text as tokens, and what is run on it.

    The first run starts with the first token, the second after `length` tokens; both then decode.
    """

    ids: tuple[int, ...]
    length: int
    steps: int

    @property
    def rows(self) -> list[int]:
        """Positions whose logits are compared: of the first run, then of the second."""
        first = range(self.steps)
        return [*first, *range(self.length - 1, self.length + self.steps)]

    @property
    def runs(self) -> tuple[range, range]:
        """The positions of the tokens that both runs decode."""
        return range(1, self.steps), range(self.length, self.length + self.steps)

    @property
    def following(self) -> list[int | None]:
        """The text's next token after each of the rows."""
        return [self.ids[row + 1] if row + 1 < len(self.ids) else None for row in self.rows]

    def decoded(self) -> list[Step]:
        """The steps whose results belong to `rows`."""
        ids, length, end = self.ids, self.length, self.length + self.steps
        first = [Step((ids[0],), clear=True)]
        first += [Step((ids[i],), chunk=0) for i in range(1, self.steps)]
        second = [Step(ids[:length], clear=True)]
        return [*first, *second, *(Step((ids[i],), chunk=0) for i in range(length, end))]

    def again(self, chunk: int) -> list[Step]:
        """The long prompt in other chunks, and the tokens of the whole second run as one prompt."""
        end = self.length + self.steps
        return [Step(self.ids[: self.length], True, chunk), Step(self.ids[:end], True)]


def read_prompt(package: Path, config: Gemma4Config, text: str, context: int, steps: int) -> Prompt:
    """Tokens of a text, repeated where it is too short for a prompt of more than two windows.

    Parameters
    ----------
    context : positions that the package has room for
    steps : tokens to decode; fewer where the context is short

    Raises
    ------
    UsageError, ArtifactError
        If the text has no tokens, or the tokenizer cannot be loaded.
    """
    path = package / "tokenizer.json"
    try:
        tokenizer = load_tokenizer(path)
    except ConversationError as error:
        raise ArtifactError(str(error), hint="compile the package again") from error
    if context < 2:
        raise UsageError(
            f"a package with room for {context} token cannot be verified",
            hint="compile with a longer --context",
        )
    steps = min(steps, max(1, context // 4))
    length = min(2 * config.sliding_window + _BEYOND_WINDOWS, context - steps)
    wanted = length + steps
    # What is wanted is in so much of the text; all of a long one would take minutes.
    body = encode(tokenizer, text[: (wanted + 1) * longest_token_bytes(tokenizer)])
    if not body:
        raise UsageError("the text has no tokens", hint="give another --text")
    first = [] if config.bos_token_id == NO_TOKEN else [config.bos_token_id]
    repeated = [*first, *(body * math.ceil(wanted / len(body)))]
    return Prompt(tuple(repeated[: wanted + 1]), length, steps)


def encode(
    tokenizer: Tokenizer, text: str, *, option: str = "", hint: str = "give another --text"
) -> list[int]:
    """Ids of a text in which control tokens are spelled out; UsageError if they cannot be had.

    `option`, where a text is of one, begins the error.
    """
    try:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    except BaseException as error:  # a panic of native code is no Exception
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise UsageError(
            f"{f'{option}: ' if option else ''}the tokenizer fails at this text: {error}", hint=hint
        ) from error
    return ids


def read_text(path: Path | None) -> str:
    """The text of a file, or the one that ships; UsageError if it cannot be read."""
    return given_text.read_text("--text", path or TEXT_FILE)


def other_chunk(length: int, chunk: int) -> int:
    """A chunk that is neither the library's nor a divisor of it, about a third of what it takes."""
    return max(1, min(length, chunk) // 3 - 1)

"""What a checkpoint's prompts lack; transformers runs it as well, so it is said and no error."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gemma4_compile.confined.conversation import Trial
from gemma4_compile.confined.dialogues import ANSWER, DIALOGUES

_SHOWN = 40  # characters of what follows a reply
_ROLES = {"assistant": "what the model said before", "system": "a system message"}


@dataclass(frozen=True)
class Finding:
    """Something that changes replies, and what to do."""

    message: str
    hint: str


def prompt_findings(
    trial: Trial,
    template: str | None,
    added_tokens: Mapping[str, int],
    bos_token_id: int,
    stop_token_ids: Collection[int],
) -> list[Finding]:
    """Hold prompts against what was said and what a model needs; nothing without a template.

    Parameters
    ----------
    trial : what the template makes of short dialogues
    template : its source
    added_tokens : ids of the tokenizer's added tokens
    bos_token_id : of the model's config
    stop_token_ids : what ends a reply
    """
    if template is None:
        return []
    names = {token_id: name for name, token_id in added_tokens.items()}
    return [
        *_of_bos(trial, template, names.get(bos_token_id, "<bos>"), bos_token_id),
        *_of_texts(trial),
        *_of_stops(trial, added_tokens, stop_token_ids),
    ]


def _of_bos(trial: Trial, template: str, name: str, bos_token_id: int) -> list[Finding]:
    ids = trial.token_ids["a question"]
    count = list(ids).count(bos_token_id)
    if count == 1 and ids[0] == bos_token_id:
        return []
    if count > 1:
        return [
            Finding(
                f"prompts hold `{name}` {count} times: the chat template writes it more than once",
                "replies may get worse; leave one `{{ bos_token }}` in the chat template",
            )
        ]
    if count == 1:
        return [
            Finding(
                f"prompts do not begin with `{name}`: the chat template writes something before it",
                "replies may get worse; put `{{ bos_token }}` first in the chat template",
            )
        ]
    if "bos_token" in template:
        return [
            Finding(
                f"prompts begin without `{name}`: no file of the checkpoint names `bos_token`, "
                "which the chat template writes",
                f'replies may make no sense; add `"bos_token": "{name}"` to tokenizer_config.json',
            )
        ]
    return [
        Finding(
            f"prompts begin without `{name}`: the chat template does not write it",
            "replies may make no sense; put `{{ bos_token }}` first in the chat template, unless "
            "the model was trained without it",
        )
    ]


def _of_texts(trial: Trial) -> list[Finding]:
    found = []
    for name, role in (("two turns", "assistant"), ("a system message", "system")):
        prompt = trial.prompts[name]
        if prompt is not None and DIALOGUES[name].left_out(prompt, role) is not None:
            found.append(
                Finding(
                    f"the chat template leaves out {_ROLES[role]}: prompts are made without it",
                    "correct the chat template, if that was not meant",
                )
            )
    return found


def _of_stops(
    trial: Trial, added_tokens: Mapping[str, int], stop_token_ids: Collection[int]
) -> list[Finding]:
    """What follows a reply in the prompt is what the model writes at its end."""
    prompt = trial.prompts["two turns"] or ""
    _, said, after = prompt.partition(ANSWER)
    after = after.lstrip()
    stops = [name for name, token_id in added_tokens.items() if token_id in stop_token_ids]
    if not said or after.startswith(tuple(stops)):
        return []
    tokens = [name for name in added_tokens if name.strip() and after.startswith(name)]
    if not tokens:
        shown = after[:_SHOWN]
        return [
            Finding(
                f"the chat template ends a reply by {shown!r}, which begins with no stop token",
                "replies may go on with the user's next turn; give `stop` in requests",
            )
        ]
    name = max(tokens, key=len)
    return [
        Finding(
            f"the chat template ends a reply by `{name}`, which is no stop token",
            f"replies may go on with the user's next turn; add its id {added_tokens[name]} to "
            "`eos_token_id` of generation_config.json",
        )
    ]

"""The chat part of a package: tried, made and held against the checkpoint's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemma4_compile.checkpoint.chat_files import ChatFiles
from gemma4_compile.checkpoint.files import GENERATION_FILE
from gemma4_compile.checkpoint.match import Checkpoint
from gemma4_compile.checkpoint.sentence_files import longest_text, read_prompts
from gemma4_compile.compile.compilation import Compilation
from gemma4_compile.compile.processor_config import warn_of_processor
from gemma4_compile.confined.conversation import Trial
from gemma4_compile.model_spec.config.variants import NO_TOKEN
from gemma4_compile.options.process import warn
from gemma4_compile.package import artifacts, interface
from gemma4_compile.package.client_form import Difference, differences, find_form
from gemma4_compile.package.conversation import (
    GEMMA,
    added_tokens,
    chat_template_config,
    declared_stops,
    sampling_defaults,
)
from gemma4_compile.package.generation_options import warn_of_left_out, warn_of_unsaid_sampling
from gemma4_compile.package.media import check_tokens
from gemma4_compile.package.prompt_checks import prompt_findings
from gemma4_compile.package.token_checks import token_findings
from gemma4_compile.progress import Reporter
from gemma4_compile.types import JsonObject

_SHOWN = 60  # characters of a system message, or a token
_SHOWN_TOKENS = 8
_CUTS = ("truncation", "padding")  # of tokenizer.json
_DROPOUT = "dropout"  # of its model


@dataclass(frozen=True)
class Conversation:
    """How a package holds conversations.

    Attributes
    ----------
    files : the checkpoint's templates and special tokens
    config : `mlc-chat-config.json`
    differences : of the client's prompts; empty where no client makes any
    tokenizer : `tokenizer.json`, where it is another than the checkpoint's
    """

    files: ChatFiles
    config: JsonObject
    differences: Sequence[Difference]
    tokenizer: JsonObject | None

    def provenance(self) -> list[JsonObject] | None:
        """The entry of provenance; None where there is nothing to note."""
        return [one.to_json() for one in self.differences] or None


def make_conversation(
    build: Compilation, checkpoint: Checkpoint, reporter: Reporter
) -> Conversation:
    """Try tokenizer and chat template, and make the client's conversation of them.

    Raises
    ------
    CheckpointError
        If they hold no conversation.
    """
    tokenizer, is_other = _tokenizer(build, checkpoint, reporter)
    check_tokens(build.media, tokenizer)
    warn_of_processor(checkpoint.path, build.media)
    chat = ChatFiles.read(checkpoint.path)
    trial = chat.try_conversation(build.config.vocab_size)
    _report_tokens(tokenizer, chat)
    tokens = added_tokens(tokenizer)
    bos = build.config.bos_token_id
    if bos == NO_TOKEN:  # the tokenizer may know it
        bos = tokens.get(chat.special_tokens.get("bos_token", GEMMA.bos), NO_TOKEN)
    form = None
    if chat.template is not None:
        form = find_form(trial, _name(tokens, bos)) or GEMMA
    conversation = chat_template_config(
        vocab_size=build.config.vocab_size,
        bos_token_id=bos,
        eos_token_ids=build.config.eos_token_id,
        tokenizer=tokenizer,
        generation_config=build.source.generation_config,
        form=form,
    )
    warn_of_left_out(build.source.generation_config)
    warn_of_unsaid_sampling(
        build.source.generation_config,
        sampling_defaults(build.source.generation_config),
        is_there=(checkpoint.path / GENERATION_FILE).is_file(),
    )
    pad = max(build.config.pad_token_id, 0)
    config = _chat_config(build, checkpoint, {**conversation, "pad_token_id": pad})
    found: list[Difference] = []
    if form is not None and build.serves_browsers:
        found = list(differences(form, trial))
        if form.default_system:
            own = form.default_system[:_SHOWN]
            reporter.stage(f"in browsers the chat template's own system message holds too: {own!r}")
    _report_stops(build, conversation, reporter)
    _report(trial, chat, tokens, build, conversation, found)
    return Conversation(chat, config, found, tokenizer if is_other else None)


def make_encoder_config(
    build: Compilation, checkpoint: Checkpoint, reporter: Reporter, *, is_length_asked: bool = False
) -> Conversation:
    """Try the tokenizer, and write what an encoder's texts need in the place of a conversation.

    With `is_length_asked`, texts may be as long as was asked for, and not only as the checkpoint's
    files say. CheckpointError if the tokenizer cannot be used, or as `read_prompts`.
    """
    tokenizer, is_other = _tokenizer(build, checkpoint, reporter)
    files = ChatFiles.read(checkpoint.path)
    ChatFiles(files.directory, {}, files.tokenizer_config).try_conversation(build.config.vocab_size)
    _report_tokens(tokenizer, files)
    conversation = chat_template_config(
        vocab_size=build.config.vocab_size,
        bos_token_id=build.config.bos_token_id,
        eos_token_ids=build.config.eos_token_id,
        tokenizer=tokenizer,
        generation_config={},
        form=None,
    )
    prompts = read_prompts(checkpoint.path)
    embedding = {
        **(build.embedding or {}),
        "prompts": dict(prompts.by_task),
        "default_prompt": prompts.default,
        **_longest(build, checkpoint, reporter, is_length_asked=is_length_asked),
    }
    pad = max(build.config.pad_token_id, 0)
    written = {**conversation, "pad_token_id": pad, interface.EMBEDDING: embedding}
    config = _chat_config(build, checkpoint, written)
    return Conversation(files, config, (), tokenizer if is_other else None)


def _longest(
    build: Compilation, checkpoint: Checkpoint, reporter: Reporter, *, is_length_asked: bool
) -> JsonObject:
    """The entry of an encoder's longest text, where its files say of a shorter one."""
    longest = longest_text(checkpoint.path)
    if longest is None or longest >= build.context_length:
        return {}
    if is_length_asked:
        warn(
            f"sentence-transformers reads up to {longest} tokens of a text of this checkpoint, and "
            f"--context asks for {build.context_length}",
            "vectors of longer texts are others than there: leave --context out for its length",
        )
        return {}
    reporter.stage(
        f"a text has up to {longest} tokens, as the checkpoint's files say; --context takes more"
    )
    return {interface.LONGEST_TEXT: longest}


def _tokenizer(
    build: Compilation, checkpoint: Checkpoint, reporter: Reporter
) -> tuple[JsonObject, bool]:
    """The package's `tokenizer.json`, and whether it is another than the checkpoint's.

    Says which tokens are left out. What training left there to cut or fill texts is left out too:
    transformers asks for it at each call, and a client in a browser would do it to every prompt.
    So is what varies a text's tokens.
    """
    tokenizer, left_out = checkpoint.tokenizer(build.config.vocab_size)
    if left_out:
        shown = ", ".join(f"`{name[:_SHOWN]}`" for name in left_out[:_SHOWN_TOKENS])
        reporter.stage(
            f"tokens without a row in the model are text here: {shown}"
            + (f" and {len(left_out) - _SHOWN_TOKENS} more" if left_out[_SHOWN_TOKENS:] else "")
        )
    changed: JsonObject = {name: None for name in _CUTS if tokenizer.get(name) is not None}
    model = tokenizer["model"]
    if isinstance(model, dict) and model.get(_DROPOUT) is not None:
        changed["model"] = {**model, _DROPOUT: None}
        if model[_DROPOUT] != 0:
            warn(
                f"tokenizer.json leaves out merges at random (`{_DROPOUT}` of its model is "
                f"{str(model[_DROPOUT])[:_SHOWN]}), as training may: a package does not",
                "transformers does, so that the same prompt has other tokens at every call",
            )
    return {**tokenizer, **changed}, bool(left_out or changed)


def _chat_config(
    build: Compilation, checkpoint: Checkpoint, conversation: JsonObject
) -> JsonObject:
    """`mlc-chat-config.json` with these fields."""
    return artifacts.ChatConfig(
        model_type=build.model_type,
        quantization=build.quantization,
        vocab_size=build.config.vocab_size,
        context_window_size=build.context_length,
        prefill_chunk_size=build.prefill_chunk,
        tokenizer_files=tuple(
            file.name for file in checkpoint.tokenizer_files() if file.name.startswith("tokenizer")
        ),
        conversation=conversation,
    ).to_json()


def _report_tokens(tokenizer: JsonObject, files: ChatFiles) -> None:
    """Warn where transformers makes other tokens than `tokenizer.json` alone."""
    for finding in token_findings(tokenizer, files.tokenizer_config, files.more_tokens):
        warn(finding.message, finding.hint)


def _report_stops(build: Compilation, conversation: JsonObject, reporter: Reporter) -> None:
    """Say which ids of the files end no reply, and where none does."""
    stops = conversation["conv_template"]["stop_token_ids"]
    declared = declared_stops(build.source.generation_config, build.config.eos_token_id)
    if dropped := [str(token_id) for token_id in declared if token_id not in stops]:
        more = f" and {len(dropped) - _SHOWN_TOKENS} more" if dropped[_SHOWN_TOKENS:] else ""
        reporter.stage(
            f"`eos_token_id` {', '.join(dropped[:_SHOWN_TOKENS])}{more}: no tokens of the model, "
            "which end no reply"
        )
    if not stops:
        warn(
            "no token ends a reply: the checkpoint names none that the model has",
            "replies go on up to their limit; give `stop` in requests, or `eos_token_id` in "
            "generation_config.json",
        )


def _name(added: Mapping[str, int], token_id: int) -> str:
    return next((name for name, known in added.items() if known == token_id), GEMMA.bos)


def _report(
    trial: Trial,
    chat: ChatFiles,
    tokens: Mapping[str, int],
    build: Compilation,
    conversation: JsonObject,
    found: Sequence[Difference],
) -> None:
    """Warn of what changes replies, and nothing else would tell."""
    stops = conversation["conv_template"]["stop_token_ids"]
    bos = conversation["bos_token_id"]
    for finding in prompt_findings(trial, chat.template, tokens, bos, stops):
        warn(finding.message, finding.hint)
    if build.serves_browsers and "strftime_now" in (chat.template or ""):
        warn(
            "the chat template asks for the date, and in browsers its prompts keep today's",
            "compile the package again now and then, or take a template without a date",
        )
    if found:
        more = f" (and {len(found) - 1} more, in provenance.json)" if found[1:] else ""
        warn(
            f"in browsers prompts differ from the checkpoint's chat template: {found[0]}{more}",
            "replies may differ from other programs'; a package for cpu, cuda or metal follows the "
            "template, and docs/web.md has what the client can write",
        )

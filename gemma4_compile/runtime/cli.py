"""`gemma4-chat DIR`: talk to a compiled package in the terminal, or ask it one question."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.media.decode import check_readable
from gemma4_compile.media.inputs import check_modality
from gemma4_compile.options.chat import check, empty_question, make_parser
from gemma4_compile.options.given_text import read_stdin, read_text, utf8
from gemma4_compile.options.process import check_open, run_command
from gemma4_compile.runtime.chat.chat import Chat
from gemma4_compile.runtime.chat.completion import TextCompletion
from gemma4_compile.runtime.check.bench import measure, table
from gemma4_compile.runtime.check.diagnose import diagnose
from gemma4_compile.runtime.check.profile import profile, profile_table
from gemma4_compile.runtime.check.tune import tune, tuning_table
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.grammar.grammar import Grammars, JsonGrammar
from gemma4_compile.runtime.package.integrity import Check
from gemma4_compile.runtime.package.package import Package, read_provenance
from gemma4_compile.runtime.sampling.sampling import TokenChooser, make_sampler
from gemma4_compile.runtime.speculative.drafter import check_drafts
from gemma4_compile.runtime.terminal.console import Console
from gemma4_compile.runtime.terminal.dialogue import Dialogue
from gemma4_compile.runtime.terminal.history import KeptHistory, history_path
from gemma4_compile.runtime.terminal.lines import Lines, PipedLines, TerminalLines, is_terminal
from gemma4_compile.system.limits import peak_memory_bytes

_SCHEMA_HINT = 'give a file like {"type": "object", "properties": {"answer": {"type": "string"}}}'
_STDIN = "-"
_BYTE_ORDER_MARK = "\ufeff"  # as some editors begin a file


def _sampler(arguments: argparse.Namespace, package: Package) -> TokenChooser:
    defaults = package.sampling_defaults()
    if arguments.greedy:
        return make_sampler(replace(defaults, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0))
    named = {name: getattr(arguments, name) for name in ("temperature", "top_k", "top_p")}
    given = {name: value for name, value in named.items() if value is not None}
    return make_sampler(replace(defaults, **given), arguments.seed)


def _question(arguments: argparse.Namespace) -> str | None:
    """The one question of the command line, or None for a conversation."""
    if arguments.prompt_file is None:
        text: str | None = arguments.prompt
    elif arguments.prompt_file == _STDIN:
        text = read_stdin("--prompt-file")
    else:
        text = read_text("--prompt-file", Path(arguments.prompt_file))
    if text is not None:
        text = utf8("the question", text)
    if text is not None and not text.strip():
        raise empty_question()
    return text


def _speak_utf8() -> None:
    """Read and write UTF-8 whatever the locale; bytes that are none are found by `utf8`."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")


def _grammar(path: Path, package: Package) -> JsonGrammar:
    try:
        schema = json.loads(read_text("--json-schema", path).removeprefix(_BYTE_ORDER_MARK))
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"--json-schema: `{path}` is not JSON: {error}", hint=_SCHEMA_HINT
        ) from error
    if not isinstance(schema, dict):
        raise UsageError(
            f"--json-schema: `{path}`: expected a JSON object, found {schema!r:.60}",
            hint=_SCHEMA_HINT,
        )
    tokenizer, config = package.load_tokenizer(), package.chat_config
    return Grammars(tokenizer, config.vocab_size, sorted(package.stop_token_ids)).compile(schema)


def _bench(arguments: argparse.Namespace, package: Package, console: Console) -> None:
    """Print a table of speeds; stdout has nothing else."""
    with console.loading(arguments.package, package.library_name) as progress:
        engine = Engine(
            package,
            context_length=arguments.context_length,
            progress=progress,
            drafts=arguments.draft,
        )
    measurements = []
    for measurement in measure(engine, engine.vocab_size):
        console.note(f"{measurement.context} tokens: done")
        measurements.append(measurement)
    print(table(measurements))
    peak = peak_memory_bytes()
    if peak is not None:
        print(f"peak memory of the process: {peak / 2**20:,.0f} MiB")


def _profile(arguments: argparse.Namespace, package: Package, console: Console) -> None:
    """Print a table of kernels for a prompt and for a token; stdout has nothing else."""
    with console.loading(arguments.package, package.library_name) as progress:
        found = list(profile(package, context_length=arguments.context_length, progress=progress))
    print("\n\n".join(map(profile_table, found)))


def _tune(arguments: argparse.Namespace, console: Console) -> None:
    """Print a table of the package's libraries, and keep the fastest; stdout has nothing else."""
    results = tune(
        arguments.package,
        Check(arguments.check),
        console,
        context_length=arguments.context_length,
    )
    print(tuning_table(results))


def _diagnose(arguments: argparse.Namespace) -> None:
    console = Console(quiet=arguments.quiet)
    if not arguments.package.is_dir():
        read_provenance(arguments.package)  # which names what it is; there is nothing to diagnose
    outcome = diagnose(arguments.package, arguments.diagnose, console.note, device=arguments.device)
    print(arguments.diagnose)
    if outcome.faults:
        raise ArtifactError(
            f"{outcome.faults} faults; `{arguments.diagnose}` lists them",
            hint="send that file with your report",
        )
    console.note(f"{outcome.kernels} kernels answer as their definitions; no faults")


def _run(arguments: argparse.Namespace) -> None:
    check(arguments)
    console = Console(quiet=arguments.quiet)
    if arguments.diagnose is None:
        check_open(sys.stdout)  # answers go nowhere else
    arguments.package = console.locate(arguments.package, drafts=arguments.draft, pages=False)
    if arguments.diagnose is not None:
        _diagnose(arguments)
        return
    if arguments.tune:
        _tune(arguments, console)
        return
    package = console.open(
        arguments.package,
        Check(arguments.check),
        drafts=arguments.draft,
        device=arguments.device,
    )
    check_drafts(arguments.draft, package)
    if arguments.bench:
        _bench(arguments, package, console)
    if arguments.profile:
        _profile(arguments, package, console)
    if arguments.bench or arguments.profile:
        return
    if not arguments.raw:
        package.load_chat_template()  # without one there is no conversation, so nothing is loaded
    for kind, path in arguments.attachments:
        check_modality(kind, package.modalities)
        check_readable(path)
    sampler = _sampler(arguments, package)
    question = _question(arguments)
    grammar = None if arguments.json_schema is None else _grammar(arguments.json_schema, package)
    answerer = _load(arguments, package, console)

    def new_chooser() -> TokenChooser:
        if grammar is None:
            return sampler
        return grammar.constrain(sampler, thinking=arguments.thinking)

    dialogue = Dialogue(
        answerer, console, new_chooser, arguments.max_tokens, arguments.image_tokens
    )
    for kind, path in arguments.attachments:
        dialogue.attach(kind, path)
    if question is None:
        dialogue.converse(_lines(arguments, console))
    else:
        dialogue.ask(question)


def _load(
    arguments: argparse.Namespace, package: Package, console: Console
) -> Chat | TextCompletion:
    system = None if arguments.system is None else utf8("--system", arguments.system)
    with console.loading(arguments.package, package.library_name) as progress:
        engine = Engine(
            package,
            context_length=arguments.context_length,
            progress=progress,
            drafts=arguments.draft,
        )
        if arguments.raw:
            return TextCompletion(engine, package)
        return Chat(
            engine,
            package,
            system=system,
            thinking=arguments.thinking,
            literal_specials=arguments.literal_specials,
        )


def _lines(arguments: argparse.Namespace, console: Console) -> Lines:
    if not is_terminal():
        return PipedLines()
    path = None if arguments.no_history else history_path()
    return TerminalLines(None if path is None else KeptHistory(path, console.note))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0, 1 failed, 2 usage, 130 left by Ctrl-C."""
    _speak_utf8()
    return run_command(make_parser(), _run, argv)


if __name__ == "__main__":
    sys.exit(main())

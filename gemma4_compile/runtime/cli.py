"""`gemma4-chat DIR`: talk to a compiled package in the terminal, or ask it one question."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.media.decode import check_readable
from gemma4_compile.media.inputs import check_modality
from gemma4_compile.options.chat import COMMAND, ChatOptions, empty_question
from gemma4_compile.options.given_text import read_stdin, read_text, utf8
from gemma4_compile.options.process import check_open
from gemma4_compile.runtime.chat.chat import Chat
from gemma4_compile.runtime.chat.completion import TextCompletion
from gemma4_compile.runtime.check.bench import measure, table
from gemma4_compile.runtime.check.diagnose import diagnose
from gemma4_compile.runtime.check.profile import profile, profile_table
from gemma4_compile.runtime.check.shares import Yardstick
from gemma4_compile.runtime.check.tune import tune, tuning_table
from gemma4_compile.runtime.check.tune_run import Sizes
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.grammar.grammar import Grammars, JsonGrammar
from gemma4_compile.runtime.package.integrity import Check
from gemma4_compile.runtime.package.package import Package, read_provenance
from gemma4_compile.runtime.package.room import Placement, Wish
from gemma4_compile.runtime.prefixes.kept import PrefixCache, nothing_kept, prefix_memory
from gemma4_compile.runtime.prefixes.prefix_folder import check_free
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


def _sampler(options: ChatOptions, package: Package) -> TokenChooser:
    defaults = package.sampling_defaults()
    if options.greedy:
        return make_sampler(replace(defaults, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0))
    return make_sampler(replace(defaults, **options.sampling), options.seed)


def _question(options: ChatOptions) -> str | None:
    """The one question of the command line, or None for a conversation."""
    if options.prompt_file is None:
        text = options.prompt
    elif options.prompt_file == _STDIN:
        text = read_stdin("--prompt-file")
    else:
        text = read_text("--prompt-file", Path(options.prompt_file))
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


def _engine(options: ChatOptions, package: Package, console: Console) -> Engine:
    """The package's engine; its loading is shown."""
    with console.loading(package.directory, package.library_name) as progress:
        engine = Engine(
            package,
            context_length=options.context_length,
            progress=progress,
            drafts=options.draft,
            ple=options.ple,
            experts=options.experts,
            expert_cache=options.expert_cache,
        )
    if engine.experts.on_host:
        console.note(engine.experts.describe())
    return engine


def _bench(options: ChatOptions, package: Package, console: Console) -> None:
    """Print a table of speeds; stdout has nothing else."""
    engine = _engine(options, package, console)
    measurements = []
    for measurement in measure(engine, engine.vocab_size):
        console.note(f"{measurement.context} tokens: done")
        measurements.append(measurement)
    print(table(measurements, Yardstick.of(engine)))
    if engine.expert_cache is not None:
        print(engine.expert_cache.describe())
    peak = peak_memory_bytes()
    if peak is not None:
        print(f"peak memory of the process: {peak / 2**20:,.0f} MiB")


def _profile(options: ChatOptions, package: Package, console: Console) -> None:
    """Print a table of kernels for a prompt and for a token; stdout has nothing else."""
    with console.loading(package.directory, package.library_name) as progress:
        steps = profile(
            package,
            context_length=options.context_length,
            progress=progress,
            experts=options.experts,
            expert_cache=options.expert_cache,
            ple=options.ple,
        )
        found = list(steps)
    print("\n\n".join(map(profile_table, found)))


def _placement(options: ChatOptions) -> Placement:
    return Placement(options.ple, options.experts, options.expert_cache)


def _tune(options: ChatOptions, package: Path, console: Console) -> None:
    """Print a table of the package's libraries, and keep the fastest; stdout has nothing else."""
    sizes = Sizes(options.context_length, _placement(options))
    print(tuning_table(tune(package, Check(options.check), console, sizes=sizes)))


def _diagnose(options: ChatOptions, package: Path, report: Path, console: Console) -> None:
    if not package.is_dir():
        read_provenance(package)  # which names what it is; there is nothing to diagnose
    outcome = diagnose(package, report, console.note, device=options.device)
    print(report)
    if outcome.faults:
        raise ArtifactError(
            f"{outcome.faults} faults; `{report}` lists them",
            hint="send that file with your report",
        )
    console.note(f"{outcome.kernels} kernels answer as their definitions; no faults")


def run(options: ChatOptions) -> None:
    """Chat, or what else is asked for."""
    _speak_utf8()
    console = Console(quiet=options.quiet)
    if options.diagnose is None:
        check_open(sys.stdout)  # answers go nowhere else
    wish = Wish(
        options.device,
        options.context_length,
        options.draft != 0,
        _placement(options),
    )
    folder = console.locate(options.package, drafts=options.draft, pages=False, wish=wish)
    if options.diagnose is not None:
        _diagnose(options, folder, options.diagnose, console)
        return
    if options.tune:
        _tune(options, folder, console)
        return
    package = console.open(
        folder, Check(options.check), drafts=options.draft, device=options.device
    )
    check_drafts(options.draft, package)
    if options.bench:
        _bench(options, package, console)
    if options.profile:
        _profile(options, package, console)
    if options.bench or options.profile:
        return
    if not options.raw:
        package.load_chat_template()  # without one there is no conversation, so nothing is loaded
    for kind, path in options.attachments:
        check_modality(kind, package.modalities)
        check_readable(path)
    sampler = _sampler(options, package)
    question = _question(options)
    grammar = None if options.json_schema is None else _grammar(options.json_schema, package)

    def new_chooser() -> TokenChooser:
        if grammar is None:
            return sampler
        return grammar.constrain(sampler, thinking=options.thinking)

    with ExitStack() as ending:
        answerer = _load(options, package, console, ending)
        dialogue = Dialogue(
            answerer, console, new_chooser, options.max_tokens, options.image_tokens
        )
        for kind, path in options.attachments:
            dialogue.attach(kind, path)
        if question is None:
            dialogue.converse(_lines(options, console))
        else:
            dialogue.ask(question)


def _load(
    options: ChatOptions, package: Package, console: Console, ending: ExitStack
) -> Chat | TextCompletion:
    """What answers; what is to be done at the end is put into `ending`."""
    system = None if options.system is None else utf8("--system", options.system)
    cache = None
    if options.prefix_cache is not None:
        check_free(options.prefix_cache)  # before anything is loaded
        provenance = read_provenance(package.directory)
        cache = PrefixCache.of(options.prefix_cache, provenance, package.library_name)
    engine = _engine(options, package, console)
    if options.raw:
        return TextCompletion(engine, package)
    chat = Chat(
        engine,
        package,
        system=system,
        thinking=options.thinking,
        literal_specials=options.literal_specials,
        prefix_memory=prefix_memory(options.prefix_memory),
        prefix_cache=cache,
    )
    ending.callback(chat.close)
    if cache is not None and not chat.keeps_beginnings:
        console.note(nothing_kept(cache))
    return chat


def _lines(options: ChatOptions, console: Console) -> Lines:
    if not is_terminal():
        return PipedLines()
    path = None if options.no_history else history_path()
    return TerminalLines(None if path is None else KeptHistory(path, console.note))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit status: 0, 1 failed, 2 usage, 130 left by Ctrl-C."""
    return COMMAND.main(run, argv)


if __name__ == "__main__":
    sys.exit(main())

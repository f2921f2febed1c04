"""Every option of every command changes what the command calls; a new one has its line here."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest

from gemma4_compile.cli import compile as compile_cli
from gemma4_compile.cli import verify as verify_cli
from gemma4_compile.options import chat, compile, serve, verify
from gemma4_compile.options.command import Command
from gemma4_compile.runtime import cli as chat_cli
from gemma4_compile.runtime import listening, serve_several, served_package, serving_page
from gemma4_compile.runtime import serve as serve_cli
from gemma4_compile.runtime.prefixes import kept

COMMON = {"-h", "--help", "--version", "--debug"}  # see test_process.py and test_start.py
POSITIONAL = ""
ALONE = "| "


@dataclass(frozen=True)
class Case:
    """A command: a line without options, and what each option adds to what is called.

    Attributes
    ----------
    functions : names in the command's modules that stand for all that it calls
    options : for each, what is written after the line (in its place, behind ALONE), and a part of
        the calls that is not made without it
    modules : further ones that the command is in
    """

    module: ModuleType
    command: Command[Any]
    line: str
    functions: str
    options: Mapping[str, tuple[str, str]]
    modules: tuple[ModuleType, ...] = ()


COMPILE = {
    POSITIONAL: ("| org/name -o out", "model='org/name'"),
    "--output": ("--output other", "output=PosixPath('other')"),
    "--target": ("--target cpu", "target='cpu'"),
    "--libraries": ("--libraries f16", "libraries=(LibraryForm(name='f16'"),
    "--limits": ("--limits compat", "limits='compat'"),
    "--adapter": ("--adapter a --adapter b", "adapters=('a', 'b')"),
    "--quant": ("--quant q8f16", "quant='q8f16'"),
    "--recipe": ("--recipe RECIPE", "overrides=(('embed_tokens', 'q8f16_1'),)"),
    "--calibrate": ("--calibrate RECIPE", "calibrating(PosixPath('out'), PosixPath('RECIPE'))"),
    "--activations": ("--activations int8", "activations='int8', float16='native', modalities"),
    "--float16": ("--float16 words", "float16='words', modalities"),
    "--modalities": ("--modalities all", "modalities=None"),
    "--image-tokens": ("--image-tokens 560 --modalities all", "image_tokens=560"),
    "--image-shape": ("--image-shape square --modalities all", "image_shape='square'"),
    "--drafter": ("--drafter d", "drafter='d'"),
    "--tokenizer": ("--tokenizer t", "tokenizer='t'"),
    "--context": ("--context 64", "context_length=64"),
    "--prefill-chunk": ("--prefill-chunk 8", "prefill_chunk=8"),
    "--fit": ("--fit 8GB", "fit=Budget(text='8GB'"),
    "--plan": ("--plan", "plan_model("),
    "--report": ("--report", "report_text("),
    "--json": ("--report --json", "report_json("),
    "--only": ("--only weights", "only='weights'"),
    "--rebuild": ("| --rebuild p", "RebuildRequest(package=PosixPath('p')"),
    "--revision": ("--revision r", "revision='r'"),
    "--force": ("--force", "force=True"),
    "--allow-nonfinite": ("--allow-nonfinite", "allow_nonfinite=True"),
    "--verify": ("--verify", "verify(VerifyRequest(package=PosixPath('out')"),
    "--node-modules": ("--verify --node-modules m", "node_modules=PosixPath('m')"),
    "--dump-ir": ("--dump-ir each:ir", "dump_ir=DumpOption(folder=PosixPath('ir'), each=True)"),
    "--shard-size": ("--shard-size 1MiB", "shard_bytes=1048576"),
    "--publish": ("--publish a/b", "publish(PublishRequest(package=PosixPath('out'), name='a/b'"),
    "--from": ("| --publish a/b --from p", "publish(PublishRequest(package=PosixPath('p')"),
    "--license-file": ("--publish a/b --license-file l", "licence_file=PosixPath('l')"),
    "--public": ("--publish a/b --public", "public=True"),
}
COMPARED = "| MODEL --compare-recipes q8f16"
VERIFY = {
    POSITIONAL: ("| other --reference tiny", "package=PosixPath('other')"),
    "--reference": ("| DIR --reference org/name", "reference='org/name'"),
    "--library": ("--library f16", "library='f16'"),
    "--compare-recipes": (COMPARED, "recipes=('q8f16',)"),
    "--fit-bits": ("| MODEL --fit-bits 4.8", "text_tokens=1024, device='auto'"),
    "--revision": ("--revision r", "revision='r'"),
    "--drafter": ("--drafter d", "drafter='d'"),
    "--tokenizer": (f"{COMPARED} --tokenizer t", "tokenizer='t'"),
    "--adapter": ("--adapter a --adapter b", "adapters=('a', 'b')"),
    "--steps": ("--steps 3", "steps=3"),
    "--text": ("--text t", "text=PosixPath('t')"),
    "--texts": ("--texts code,chat,code", "texts=('code', 'chat')"),
    "--text-tokens": ("--text-tokens 7", "text_tokens=7"),
    "--device": ("--device cpu", "device='cpu'"),
    "--output": (f"{COMPARED} --output o", "write_output(PosixPath('o')"),
    "--node-modules": ("--node-modules m", "node_modules=PosixPath('m')"),
    "--json": ("| DIR --reference tiny --json", "json_text("),
}
CHAT = {
    POSITIONAL: ("| other", "locate(PosixPath('other')"),
    "--prompt": ("--prompt hello", "ask('hello')"),
    "--prompt-file": ("--prompt-file QUESTION", "ask('why?')"),
    "--raw": ("--raw", "TextCompletion("),
    "--system": ("--system be", "system='be'"),
    "--image": ("--image i", "attach('image', PosixPath('i'))"),
    "--audio": ("--audio a", "attach('audio', PosixPath('a'))"),
    "--video": ("--video v", "attach('video', PosixPath('v'))"),
    "--image-tokens": ("--image-tokens 560", ", 560)"),
    "--thinking": ("--thinking", "thinking=True"),
    "--literal-specials": ("--literal-specials", "literal_specials=True"),
    "--json-schema": ("--json-schema RECIPE", "compile({'schemes'"),
    "--max-tokens": ("--max-tokens 77", ", 77, None)"),
    "--temperature": ("--temperature 0.5", "temperature=0.5)"),
    "--top-p": ("--top-p 0.25", "top_p=0.25)"),
    "--top-k": ("--top-k 5", "top_k=5)"),
    "--seed": ("--seed 11", ", 11)"),
    "--greedy": ("--greedy", "temperature=0.0, top_k=0, top_p=1.0"),
    "--context-length": ("--context-length 64", "context_length=64"),
    "--draft": ("--draft 3", "drafts=3"),
    "--ple": ("--ple host", "ple='host'"),
    "--experts": ("--experts 25%", "experts=0.25"),
    "--expert-cache": ("--expert-cache 2GB", "expert_cache=2000000000"),
    "--prefix-memory": ("--prefix-memory 5MiB", "5242880"),
    "--prefix-cache": ("--prefix-cache P", "path=PosixPath('P')"),
    "--device": ("--device cpu", "device='cpu'"),
    "--quiet": ("--quiet", "Console(quiet=True)"),
    "--no-history": ("--no-history", "TerminalLines(None)"),
    "--check": ("--check always", "Check.ALWAYS"),
    "--bench": ("--bench", "measure("),
    "--profile": ("--profile", "call.profile("),
    "--tune": ("--tune", "call.tune("),
    "--diagnose": ("--diagnose d", "PosixPath('d')"),
}
SERVE = {
    POSITIONAL: ("| other", "locate(PosixPath('other')"),
    "--host": ("--host 127.0.0.2", "take_address('127.0.0.2', 8000)"),
    "--port": ("--port 9000", "take_address('127.0.0.1', 9000)"),
    "--page": ("--page PAGE", "folder_routes(PosixPath('PAGE')"),
    "--open": ("--open", "webbrowser.open("),
    "--no-open": ("--open --no-open --port 9000", "take_address('127.0.0.1', 9000)"),
    "--context-length": ("--context-length 64", "context_length=64"),
    "--draft": ("--draft 3", "drafts=3"),
    "--ple": ("--ple host", "ple='host'"),
    "--experts": ("--experts 25%", "experts=0.25"),
    "--expert-cache": ("--expert-cache 2GB", "expert_cache=2000000000"),
    "--prefix-memory": ("--prefix-memory 5MiB", "5242880"),
    "--prefix-cache": ("--prefix-cache P", "path=PosixPath('P')"),
    "--forget": ("--forget", "call.forget(PosixPath('DIR'))"),
    "--device": ("--device cpu", "device='cpu'"),
    "--thinking": ("--thinking", "thinking=True"),
    "--literal-specials": ("--literal-specials", "literal_specials=True"),
    "--model-name": ("--model-name other", ", 'other', None)"),
    "--strict-model": ("--strict-model", "strict_model=True"),
    "--strict-request": ("--strict-request", "strict_request=True"),
    "--allow-origin": ("--allow-origin https://A.b:443", "origins=('https://a.b',)"),
    "--allow-host": ("--allow-host A.b", "of('127.0.0.1', ('a.b',))"),
    "--slots": ("--slots 3", "sequences=3"),
    "--queue": ("--queue 3", "connections_for(3)"),
    "--max-body-mib": ("--max-body-mib 3", "Limits(body_bytes=3145728)"),
    "--allow-media-hosts": ("--allow-media-hosts A.b", "media_hosts=('a.b',)"),
    "--check": ("--check always", "Check.ALWAYS"),
    "--model": ("| --model a=other", "locate(PosixPath('other')"),
    "--memory": ("| --model a=other --memory 5MiB", "memory=5242880"),
    "--idle": ("| --model a=other --idle 7", "idle_s=7"),
}
CASES = {
    "gemma4-compile": Case(
        compile_cli,
        compile.COMMAND,
        "tiny -o out",
        "compile_model fit_model plan_model report_model rebuild publish verify shown "
        "calibrating check_verify licence_of check_place check_output _print_summary "
        "plan_json plan_text json report_json report_text needs_of check_plans "
        "_warn_of_large_files",
        COMPILE,
    ),
    "gemma4-verify": Case(
        verify_cli,
        verify.COMMAND,
        "DIR --reference tiny",
        "verify shown compare_recipes fit_bits json_text frontier_table fit_table check_output "
        "write_output",
        VERIFY,
    ),
    "gemma4-chat": Case(
        chat_cli,
        chat.COMMAND,
        "DIR",
        "Console Engine Chat TextCompletion Dialogue measure table Yardstick profile profile_table "
        "tune tuning_table diagnose read_provenance make_sampler replace Grammars check_modality "
        "check_readable check_drafts check_free digest TerminalLines KeptHistory is_terminal",
        CHAT,
        (kept,),
    ),
    "gemma4-serve": Case(
        serve_cli,
        serve.COMMAND,
        "DIR",
        "Console Engine Generator Worker Service Model HostNames create_app server_config "
        "take_address api_routes folder_routes connections_for webbrowser _Server read_provenance "
        "check_sizes for_pages without_drafter check_modality hub_package_of address_of Limits "
        "served find_page folders_routes is_loopback default_slots Slots EngineSequences "
        "kept_prefixes check_folder check_free forget digest Package Device loaded_bytes "
        "ModelCard ModelPool model_routes",
        SERVE,
        (listening, serve_several, served_package, serving_page, kept),
    ),
}


@dataclass(frozen=True)
class Served:
    """Stands for a model whose media are known once it is loaded."""

    tokenizer: object = None
    media: object = None


def options_of(case: Case) -> Iterator[str]:
    """All that the command takes, by its longest spellings."""
    for action in case.command.make_parser()._actions:
        for name in action.option_strings or [POSITIONAL]:
            if name not in COMMON and (name.startswith("--") or not name):
                yield name


def calls(case: Case, line: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the command calls, in words."""
    everything = MagicMock()
    for name in case.functions.split():
        places = [one for one in (case.module, *case.modules) if hasattr(one, name)]
        assert places, name
        for one in places:
            monkeypatch.setattr(one, name, getattr(everything, name))
    everything.served.return_value = (True, True)
    everything.read_provenance.return_value.build = {}  # of a package of replies
    everything.diagnose.return_value.faults = 0
    everything.connections_for.return_value = (everything.limits, 0)
    everything.report_model.return_value = ([], None)
    everything.fit_bits.return_value.to_json.return_value = {"recipe": {}}
    everything.fit_model.side_effect = lambda request, *_: request
    everything.plan_model.side_effect = lambda request, *_: ([everything.plan], {}, request)
    everything.Model.of.return_value = Served()
    everything.Package.open.return_value.chat_config.context_window_size = 512
    everything.Package.open.return_value.chat_config.conversation = {}
    everything.Package.open.return_value.embeds = False
    everything.Worker.side_effect = lambda load, queue: (load(), everything.worker)[1]
    everything.calibrating.return_value.__enter__.return_value = None
    assert case.module.main([*shlex.split(line), "--debug"]) == 0
    return str(everything.mock_calls)


@pytest.mark.parametrize("name", CASES)
def test_every_option_reaches_the_pipeline(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    monkeypatch.chdir(tmp_path)
    Path("RECIPE").write_text('{"schemes": {"embed_tokens": "q8f16_1"}}')
    Path("QUESTION").write_text("why?")
    Path("PAGE").mkdir()
    Path("PAGE/index.html").touch()
    assert [*options_of(case)] == [*case.options], "one line for each, in the order of the help"
    without = calls(case, case.line, monkeypatch)
    for option, (written, part) in case.options.items():
        is_alone = written.startswith(ALONE)
        line = written.removeprefix(ALONE) if is_alone else f"{case.line} {written}"
        assert part not in without, f"{option}: this is called anyway"
        assert part in calls(case, line, monkeypatch), option

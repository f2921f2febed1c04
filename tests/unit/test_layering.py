"""Reads the imports of every source file and holds them against the layers of the project."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.draw_packages import main as draw_packages
from tools.imports import ROOT, SOURCE_FOLDERS, SOURCES, imports_of, parsed, part_of, statements

MAX_LINES = 400
MAX_EXPLICIT_ANY = (
    50  # in all sources; a value from outside is `object`, and checked where it is read
)

# A module imports from its own layer and the ones above it in this list, never from one below.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("__init__", "abi", "device_kinds", "errors", "progress", "types"),
    ("system",),
    ("confined", "media", "options", "template", "tiny"),
    ("operators",),
    ("model_spec",),
    ("quantization",),
    ("targets",),
    ("checkpoint", "passes"),
    ("package", "device_check"),
    ("planning",),
    ("compile",),
    ("reports",),
    ("calibration", "verification"),
    ("cli", "kernels"),
    ("__main__", "chat_template"),  # the latter a former path, which nothing here imports
)
# The runtime is next to the layers: it runs packages and shares only names and file formats.
RUNTIME_MAY_IMPORT = {
    "__init__",
    "abi",
    "checkpoint",
    "checkpoint.hub_access",
    "checkpoint.hub_errors",
    "checkpoint.hub_id",
    "checkpoint.json_text",
    "confined",
    "device_kinds",
    "errors",
    "media",
    "options",
    "options.chat",
    "options.given_text",
    "options.prefixes",
    "options.process",
    "options.sampling_ranges",
    "options.serve",
    "package",
    "package.artifacts",
    "package.fields",
    "package.interface",
    "package.libraries",
    "package.step_work",
    "runtime",
    "system",
    "template",
    "types",
}

MAY_RUN_PACKAGES = {"verification"}

# Import inside a function: only an optional or heavy package, with its reason.
DEFERRED_IMPORTS: dict[tuple[str, str], str] = {
    (
        "gemma4_compile/verification/torch_parts.py",
        "gemma4_compile",
    ): "its `transformer` and `form_measures` need torch and transformers, which are an extra",
    ("gemma4_compile/checkpoint/gguf/types.py", "gguf"): "an extra",
    (
        "gemma4_compile/calibration/calibrate.py",
        "gemma4_compile",
    ): "its modules `layers` and `streaming` need torch and transformers, which are an extra",
    (
        "gemma4_compile/runtime/terminal/console.py",
        "gemma4_compile",
    ): "its `hub_package` loads the hub's client, which packages of this machine do without",
    ("gemma4_compile/cli/start.py", "gemma4_compile"): "Ctrl-C is to be taken before",
    (
        "gemma4_compile/system/logs.py",
        "gemma4_compile",
    ): "its `log_lines` loads `logging`, which --version does without",
    ("gemma4_compile/confined/schemas.py", "llguidance"): "an extra, in a process of its own",
    (
        "gemma4_compile/runtime/server/metrics.py",
        "gemma4_compile",
    ): "its `prometheus` loads prometheus_client, which most servers are never asked for",
    (
        "gemma4_compile/runtime/server/embeddings/endpoints.py",
        "gemma4_compile",
    ): "its `prometheus`, too",
    (
        "gemma4_compile/runtime/server/models/routes.py",
        "gemma4_compile",
    ): "its `prometheus`, too",
    ("gemma4_compile/media/picture.py", "gemma4_compile"): "its `heif` needs PyAV",
    ("gemma4_compile/media/sound.py", "gemma4_compile"): "its `sound_track` needs PyAV",
    ("gemma4_compile/media/preprocess.py", "PIL"): "an extra: text needs none of it",
    ("gemma4_compile/media/preprocess.py", "gemma4_compile"): "its `resample` needs the extra",
}


def layer(part: str) -> int:
    found = [index for index, parts in enumerate(LAYERS) if part in parts]
    assert found, f"{part} has no layer: add it to LAYERS where it belongs"
    return found[0]


def wrong_import(part: str, imported: str) -> str | None:
    """What is wrong with an import of `imported` in a module of `part`; None if nothing is."""
    if imported not in SOURCES:
        return "which does not exist"
    target = part_of(imported)
    if part == "runtime":
        name = imported.removeprefix("gemma4_compile.")
        whole = {"checkpoint", "options", "package"}  # folders of which it knows single modules
        known = name if target in whole else target
        return None if known in RUNTIME_MAY_IMPORT else "which the runtime does without"
    if target == part:
        return None
    if target == "runtime":
        return None if part in MAY_RUN_PACKAGES else "but runs nothing"
    return None if layer(target) <= layer(part) else "which is a later stage"


def test_the_committed_picture_of_the_packages_is_up_to_date() -> None:
    assert draw_packages(["--check"]) == 0, "make docs"


def test_imports_point_to_the_same_layer_or_one_above() -> None:
    wrong = [
        f"{SOURCES[module].relative_to(ROOT)}:{line} imports {imported}, {problem}"
        for module in SOURCES
        for line, imported in imports_of(module)
        if (problem := wrong_import(part_of(module), imported))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_through_others() -> None:
    graph = {name: {imported for _, imported in imports_of(name)} - {name} for name in SOURCES}
    finished: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, "cycle: " + " -> ".join((*trail[trail.index(name) :], name))
        if name not in finished:
            for imported in graph[name] & SOURCES.keys():
                # A package's __init__ imports its modules; those name the package only as a prefix.
                visit(imported, (*trail, name))
            finished.add(name)

    for name in graph:
        visit(name, ())


def room_of(module: str) -> str:
    """The folder of a module; of one that lies directly in a part, the module itself."""
    folder = module if SOURCES[module].name == "__init__.py" else module.rpartition(".")[0]
    return module if folder.count(".") < 2 else folder


def test_no_folder_imports_itself_through_others() -> None:
    graph: dict[str, dict[str, str]] = {}
    for name in SOURCES:
        for _, imported in imports_of(name):
            if imported in SOURCES and room_of(imported) != room_of(name):
                edges = graph.setdefault(room_of(name), {})
                edges.setdefault(room_of(imported), f"{name} imports {imported}")
    finished: set[str] = set()

    def visit(room: str, trail: tuple[str, ...], reasons: tuple[str, ...]) -> None:
        begin = trail.index(room) if room in trail else 0
        assert room not in trail, "folders in a circle:\n" + "\n".join(reasons[begin:])
        if room not in finished:
            for imported, reason in graph.get(room, {}).items():
                visit(imported, (*trail, room), (*reasons, reason))
            finished.add(room)

    for room in graph:
        visit(room, (), ())


def test_targets_know_nothing_of_the_model() -> None:
    wrong = [
        f"{SOURCES[module].relative_to(ROOT)}:{line}"
        for module in SOURCES
        if part_of(module) == "targets"
        for line, imported in imports_of(module)
        if imported.startswith("gemma4_compile.model_spec.config.")
    ]
    assert not wrong, "\n".join(wrong)


def misplaced_imports(module: str) -> Iterator[str]:
    """Relative imports, and imports inside functions that have no reason."""
    path = SOURCES[module].relative_to(ROOT)
    for node in statements(parsed(module)):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield f"{path}:{node.lineno}: relative import"
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for inner in statements(node):
                if isinstance(inner, (ast.Import, ast.ImportFrom)):
                    name = getattr(inner, "module", None) or inner.names[0].name
                    if (path.as_posix(), name.split(".")[0]) not in DEFERRED_IMPORTS:
                        yield f"{path}:{inner.lineno}: {name} imported inside a function"


def test_no_relative_imports_and_no_imports_inside_functions() -> None:
    wrong = [problem for module in SOURCES for problem in misplaced_imports(module)]
    assert not wrong, "\n".join(wrong)


def test_no_module_has_tvm_read_a_function_while_it_is_loaded() -> None:
    """A search of weights took longer to read than TVM to load, for every command."""
    wrong = [
        f"{SOURCES[module].relative_to(ROOT)}:{node.lineno}: {node.name}"
        for module in SOURCES
        for node in parsed(module).body
        if isinstance(node, ast.FunctionDef)
        and any("prim_func" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    assert not wrong, "\n".join(wrong)


def source_files() -> list[Path]:
    suffixes = {".py", ".cc", ".h", ".ts", ".mjs"}
    folders = (*SOURCE_FOLDERS, "tests", "examples", "benchmarks", "tools", "web")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*"))]
    return [path for path in files if path.suffix in suffixes and "node_modules" not in path.parts]


def test_no_file_is_longer_than_the_cap() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in source_files()}
    long = [f"{path.relative_to(ROOT)}: {n} lines" for path, n in lengths.items() if n > MAX_LINES]
    assert not long, "cut along an idea:\n" + "\n".join(long)


def explicit_any(text: str) -> int:
    """Places where a source says `Any`, imports left out."""
    lines = (line for line in text.splitlines() if not re.search(r"import.*\bAny\b", line))
    return sum(len(re.findall(r"\bAny\b", line)) for line in lines)


def test_few_types_are_any() -> None:
    counts = {path: explicit_any(path.read_text(encoding="utf-8")) for path in SOURCES.values()}
    found = "\n".join(f"{path.relative_to(ROOT)}: {n}" for path, n in counts.items() if n)
    assert sum(counts.values()) <= MAX_EXPLICIT_ANY, f"name the types:\n{found}"


def test_any_is_counted_where_a_source_says_it() -> None:
    assert (
        explicit_any("from typing import Any, NoReturn\n\n\ndef f(a: Any) -> list[Any]: ...") == 2
    )
    assert explicit_any("def f(company: Anything) -> object: ...") == 0


# Folders below one: each imports from those before it alone.
FOLDERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "gemma4_compile.targets.kernels": (
        ("common",),
        ("prologues",),
        ("tiles", "weights"),
        ("attention", "audio", "linear", "norms", "sampling", "vision"),
        ("moe",),
        ("drafting",),
    ),
    "gemma4_compile.runtime": (
        ("device",),
        ("library",),
        ("sampling",),
        ("package", "reply"),
        ("speculative",),
        ("engine",),
        ("prefixes", "prompt"),
        ("embedding",),
        ("chat", "grammar"),
        ("terminal",),
        ("check",),
        ("server",),
    ),
}


def folder_below(parent: str, module: str) -> str | None:
    """The folder of `parent` that a module lies in; None of `parent`'s own modules and others."""
    words = module.removeprefix(f"{parent}.").split(".")
    is_below = module.startswith(f"{parent}.") and (
        SOURCES[module].name == "__init__.py" or words[1:]
    )
    return words[0] if is_below else None


@pytest.mark.parametrize("parent", FOLDERS)
def test_folders_import_from_those_before_them(parent: str) -> None:
    rank = {name: place for place, names in enumerate(FOLDERS[parent]) for name in names}
    below = {module: name for module in SOURCES if (name := folder_below(parent, module))}
    assert set(below.values()) == set(rank)
    wrong = [
        f"{module} imports {imported}"
        for module, own in below.items()
        for _, imported in imports_of(module)
        if (other := below.get(imported, own)) != own and rank[other] >= rank[own]
    ]
    assert not wrong, "\n".join(wrong)


def test_calls_have_their_arguments_one_by_one() -> None:
    """A call with too many wants a dataclass: neither `f(*(a, b))` nor `fmt: skip` hides it."""
    packed = [
        f"{module}:{call.lineno}"
        for module in SOURCES
        for call in ast.walk(parsed(module))
        if isinstance(call, ast.Call)
        and any(isinstance(a, ast.Starred) and isinstance(a.value, ast.Tuple) for a in call.args)
    ]
    skipped = [module for module, path in SOURCES.items() if "fmt: skip" in path.read_text("utf-8")]
    assert (packed, skipped) == ([], [])

"""LICENSE and NOTICE of a package: of what is linked into its library, read where it came from."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gemma4_compile import abi
from gemma4_compile.errors import TargetError
from gemma4_compile.targets.linker import zig
from gemma4_compile.targets.linker.runtime_objects import Platform

TVM, TVM_FFI, OWN, ZIG = "apache-tvm", "apache-tvm-ffi", "gemma4-compile", "ziglang"
LICENSE, NOTICE = abi.LICENCE_FILES
_LINE = "=" * 80
_HEAD = """\
Licences of what is linked into {what}.
{uncovered}
It holds parts of:
"""
_UNCOVERED = """
They do not cover the weights, the tokenizer and the chat template, which are under the licence of
the model that this package was made from.
"""
_NOTICE_HEAD = """\
Notices of what is linked into {what}.
The licences are in the file LICENSE.
"""


def licence_texts(targets: Sequence[Platform], libraries: Sequence[str]) -> dict[str, str]:
    """Return the texts that go with libraries, by the names of their files.

    Parameters
    ----------
    targets : the platforms that they are linked for
    libraries : their names, or none for the objects that every library of one platform is linked
        with

    Raises
    ------
    TargetError
        If an installed package lacks a licence.
    """
    parts = [_part(name, LICENSE) for name in (OWN, TVM, TVM_FFI)]
    root = zig.find_zig().parent
    sources = dict.fromkeys(source for target in targets for source in target.licences)
    for title, file in sources:
        text = _read(root / file, ZIG)
        parts.append((f"{title}, as in {ZIG} {zig.version()}: {file}", text))
    notices = [_part(name, NOTICE) for name in (TVM, TVM_FFI)]
    what = f"the objects for {targets[0].name} in this folder"
    if libraries:
        names = ", ".join(f"`{name}`" for name in libraries)
        what = (
            f"the model {'library' if len(libraries) == 1 else 'libraries'} {names} of this folder"
        )
    head = _HEAD.format(what=what, uncovered=_UNCOVERED if libraries else "")
    titles = "".join(f"- {title}\n" for title, _ in parts)
    return {
        LICENSE: head + titles + "".join(_section(*part) for part in parts),
        NOTICE: _NOTICE_HEAD.format(what=what) + "".join(_section(*part) for part in notices),
    }


def apache_licence() -> str:
    """The text of the Apache License 2.0, under which this program is, too; TargetError."""
    return _part(OWN, LICENSE)[1]


def _section(title: str, text: str) -> str:
    return f"\n{_LINE}\n{title}\n{_LINE}\n\n{text}"


@cache  # an index of thousands of files is read for each, a tenth of a small compilation
def _part(package: str, name: str) -> tuple[str, str]:
    """Title and text of a file of an installed package: of its metadata, or next to its code."""
    files = importlib.metadata.files(package) or []
    found = [file for file in files if file.name == name and "3rdparty" not in file.parts]
    found.sort(key=lambda file: (".dist-info" not in file.parts[0], len(file.parts)))
    if not found:
        raise _missing(package, name)
    title = f"{package} {importlib.metadata.version(package)}"
    return title, _read(Path(str(found[0].locate())), package)


@cache
def _read(path: Path, package: str) -> str:
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError as error:
        raise _missing(package, path.name) from error
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"


def _missing(package: str, name: str) -> TargetError:
    return TargetError(
        f"the installed package `{package}` has no file {name}, which a model library comes with",
        hint=f"reinstall `{package}` from its wheel",
    )

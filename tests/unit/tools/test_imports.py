"""Imports as the layering tests and the picture read them."""

from __future__ import annotations

import ast

from tools.imports import ROOT, SOURCES, imports, module_name, part_of


def test_modules_are_named_as_they_are_imported() -> None:
    assert module_name(ROOT / "targets/webgpu.py") == "gemma4_compile.targets.webgpu"
    assert module_name(ROOT / "targets/__init__.py") == "gemma4_compile.targets"
    assert module_name(ROOT / "gemma4_compile/errors.py") == "gemma4_compile.errors"
    assert part_of("gemma4_compile.targets.webgpu") == "targets"
    assert part_of("gemma4_compile") == "__init__"


def test_every_form_of_an_import_of_ours_is_read() -> None:
    text = (
        "import numpy\n"
        "import gemma4_compile.errors as e\n"
        "from gemma4_compile import abi, errors\n"
        "from gemma4_compile.targets.spec import TargetSpec\n"
        "def f():\n"
        "    from gemma4_compile import __version__\n"
        "class C:\n"
        "    try:\n"
        "        with e: import gemma4_compile.abi\n"
        "    except ImportError:\n"
        "        while 1: import gemma4_compile.errors\n"
        "    else:\n"
        "        for _ in e: import gemma4_compile.abi\n"
        "    finally:\n"
        "        match e:\n"
        "            case 1:\n"
        "                import gemma4_compile.errors\n"
        "            case _ if 1: import gemma4_compile.abi\n"
    )
    assert sorted(imports(ast.parse(text))) == [
        (2, "gemma4_compile.errors"),
        (3, "gemma4_compile.abi"),
        (3, "gemma4_compile.errors"),
        (4, "gemma4_compile.targets.spec"),
        (6, "gemma4_compile"),
        (9, "gemma4_compile.abi"),
        (11, "gemma4_compile.errors"),
        (13, "gemma4_compile.abi"),
        (17, "gemma4_compile.errors"),
        (18, "gemma4_compile.abi"),
    ]
    assert "gemma4_compile.errors" in SOURCES

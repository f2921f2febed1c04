"""The documentation: what its links point to exists, and no option or variable is left out."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.options import chat, compile, serve, verify
from gemma4_compile.options.command import Command

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


def pages() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is nothing to list")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def headings(path: Path) -> set[str]:
    """Names of a page's headings in links, as GitHub makes them."""
    lines = re.findall(r"^#+ (.*)$", without_code(path.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def test_links_of_the_npm_package_stay_in_it() -> None:
    """Its page is shown where the repository's other files are not."""
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "web" / "README.md").read_text())
    assert [link for link in links if link.startswith("..")] == []


def test_links_point_to_what_exists() -> None:
    wrong = []
    for page in pages():
        for file, heading in LINK.findall(without_code(page.read_text("utf-8"))):
            target = (page.parent / file) if file else page
            if not target.exists():
                wrong.append(f"{page.relative_to(ROOT)}: {file} does not exist")
            elif heading and heading not in headings(target):
                wrong.append(f"{page.relative_to(ROOT)}: {file} has no heading #{heading}")
    assert not wrong, "\n".join(wrong)


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text("utf-8")
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/reports").glob("*.md")]
    names = [path.relative_to(ROOT / "docs").as_posix() for path in pages]
    assert [name for name in names if f"]({name})" not in index] == ["README.md"]


def test_decisions_have_numbers_of_their_own() -> None:
    """Two branches take the same next one: the second must see it."""
    pages = sorted((ROOT / "docs" / "adr").glob("*.md"))
    numbers = [page.name[:4] for page in pages]
    assert numbers == [f"{number:04}" for number in range(1, len(pages) + 1)]
    assert [page.read_text("utf-8").split(":")[0] for page in pages] == [f"# {n}" for n in numbers]


@pytest.mark.parametrize(
    ("command", "page"),
    [
        (compile.COMMAND, "options.md"),
        (chat.COMMAND, "chat.md"),
        (serve.COMMAND, "server.md"),
        (verify.COMMAND, "numerics.md"),
    ],
)
def test_every_option_is_on_the_page_of_its_command(command: Command[Any], page: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    written = set(re.findall(r"--[a-z][a-z0-9-]*", text))
    options = {name for one in command.make_parser()._actions for name in one.option_strings}
    long = {name for name in options if name.startswith("--")} - {"--help", "--version"}
    assert long - written == set()


def test_every_variable_of_the_programs_is_in_the_table() -> None:
    sources = (ROOT / "gemma4_compile").rglob("*.py")
    # Names of the generated code's own begin likewise: those that are asked for are whole texts.
    asked = {
        name
        for source in sources
        for name in re.findall(r"\"(GEMMA4_[A-Z0-9_]+)\"", source.read_text("utf-8"))
    }
    text = (ROOT / "docs/options.md").read_text("utf-8")
    table = text.split("## Environment variables")[1].split("\n## ")[0]
    assert "GEMMA4_LOG" in asked
    assert asked == set(re.findall(r"^\| `(GEMMA4_[A-Z0-9_]+)` \|", table, re.MULTILINE))

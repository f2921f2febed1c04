"""What `--dump-ir` may be given, and where its files go."""

import argparse
from pathlib import Path

import pytest

from gemma4_compile.options.dump import DumpOption, dump_option


@pytest.mark.parametrize(
    ("text", "option", "folder"),
    [
        ("ir", DumpOption(Path("ir")), Path("ir")),
        ("each", DumpOption(each=True), Path.cwd() / "out" / "package-ir"),
        ("each:ir", DumpOption(Path("ir"), each=True), Path("ir")),
        ("./each", DumpOption(Path("each")), Path("each")),
    ],
)
def test_the_option_names_a_folder_or_takes_one_beside_the_package(
    text: str, option: DumpOption, folder: Path
) -> None:
    assert dump_option(text) == option
    assert option.beside(Path("out/package")) == folder


@pytest.mark.parametrize("text", ["", " ", "each:", "each: "])
def test_a_folder_without_a_name_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        dump_option(text)

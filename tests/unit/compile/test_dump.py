"""What `--dump-ir` writes, for every target with kernels of a device."""

import re
from pathlib import Path
from typing import BinaryIO

import pytest

from gemma4_compile.compile.dump import MARK, Dump, begin_dump, check_dump
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.options.dump import DumpOption
from gemma4_compile.passes.fuse import FUSIONS
from gemma4_compile.system import regular_files
from tests.marks import slow_unless
from tests.models import DENSE_LIKE, write_checkpoint
from tests.packages import compile_small

pytestmark = pytest.mark.package


def test_a_link_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    victim, folder = tmp_path / "thesis.txt", tmp_path / "ir"
    victim.write_text("precious")
    dump = Dump(folder)
    dump.phase("first", "text")
    (folder / "01-second.py").symlink_to(victim)
    with pytest.raises(ArtifactError, match="a link"):
        dump.phase("second", "text")
    (folder / "kernels").mkdir()
    (folder / "kernels" / "gemm.wgsl").symlink_to(victim)
    with pytest.raises(ArtifactError, match="a link"):
        dump.kernel("gemm.wgsl", "text")
    assert victim.read_text() == "precious"
    assert (folder / "00-first.py").read_text() == "text"


def test_a_folder_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "00-init.py").write_text("precious")
    for check in (check_dump, begin_dump):
        with pytest.raises(UsageError, match="holds what is no dump"):
            check(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["00-init.py"]
    with pytest.raises(UsageError, match="is no directory"):
        check_dump(tmp_path / "00-init.py")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="is no directory"):
        check_dump(tmp_path / "link")


def test_a_new_run_leaves_no_file_of_an_earlier_one_and_every_other(tmp_path: Path) -> None:
    folder = tmp_path / "ir"
    begin_dump(folder)
    for where in (folder, folder / "compat"):
        dump = Dump(where, 3)
        dump.phase("s_tir.Some pass", "text")
        dump.phase("last", "other")
        dump.kernel("gemm.wgsl", "text")
        (where / "notes.txt").write_text("mine")
    (folder / "compat" / "007-half.py.part").write_text("of a killed run")
    begin_dump(folder)
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert left == {MARK, "notes.txt", f"compat/{MARK}", "compat/notes.txt"}


def test_what_a_pass_did_not_change_is_written_once(tmp_path: Path) -> None:
    dump = Dump(tmp_path / "ir", 3)
    for name, text in (("a", "one"), ("s_tir.b c", "one"), ("c", "two"), ("d", "two")):
        dump.phase(name, text)
    found = {path.name: path.read_text() for path in sorted((tmp_path / "ir").glob("*.py"))}
    assert found == {
        "000-a.py": "one",
        "001-s_tir_b_c.py": "# nothing changed: as in 000-a.py\n",
        "002-c.py": "two",
        "003-d.py": "# nothing changed: as in 002-c.py\n",
    }


def test_an_interruption_leaves_no_file_that_is_written_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = Dump(tmp_path)
    dump.phase("whole", "text")

    def interrupted(file: BinaryIO, content: bytes) -> None:
        file.write(content[:2])
        raise KeyboardInterrupt

    monkeypatch.setattr(regular_files, "write_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dump.phase("half", "text")
    assert {path.name for path in tmp_path.iterdir()} == {MARK, "00-whole.py"}


@pytest.mark.parametrize(
    ("target", "suffix", "begins"),
    slow_unless(
        lambda target, *_: target == "webgpu",
        [("webgpu", ".wgsl", "@compute"), ("metal", ".metal", "kernel void"), ("cpu", "", "")],
    ),
)
def test_phases_are_numbered_and_kernels_have_their_source(
    tmp_path: Path, target: str, suffix: str, begins: str
) -> None:
    folder = tmp_path / "ir"
    compile_small(
        CompileRequest(
            model="tiny",
            target=target,
            quant="q4f16" if suffix else "q4f32",
            output=tmp_path / "package",
            context_length=64,
            only="library",
            dump_ir=DumpOption(folder),
        )
    )
    phases = [path.name for path in sorted(folder.glob("*.py"))]
    assert phases == ["00-model.py", "01-kernels.py"]
    sources = sorted((folder / "kernels").glob("*"))
    assert bool(sources) == bool(suffix)
    for path in sources:
        text = path.read_text()
        assert path.suffix == suffix
        assert begins in text
        assert re.search(rf"\b{path.stem}\b", text)
        assert "// Function:" not in text
    if suffix:
        assert len(sources) > 40


@pytest.mark.slow
def test_every_pass_has_a_file_in_its_order(tmp_path: Path) -> None:
    """Of two layers of text: `tiny` goes through the same passes, its towers with it."""
    folder = tmp_path / "ir"
    config = {**DENSE_LIKE, "num_hidden_layers": 2, "layer_types": DENSE_LIKE["layer_types"][1:3]}
    model = write_checkpoint(tmp_path / "checkpoint", config, dtype="bfloat16")
    compile_small(
        CompileRequest(
            model=str(model.path),
            target="cpu",
            quant="q4f32",
            output=tmp_path / "package",
            context_length=64,
            only="library",
            dump_ir=DumpOption(folder, each=True),
        )
    )
    files = sorted(folder.glob("*.py"))
    numbers, names = zip(*(path.stem.split("-", 1) for path in files), strict=True)
    assert list(map(int, numbers)) == list(range(len(files)))
    assert list(names[: len(FUSIONS) + 1]) == ["export", *(each.__name__ for each in FUSIONS)]
    ours = ["LegalizeOps", "FuseTIR", "ApplyDefaultSchedule", "OrderShapeFunctions"]
    assert [name for name in names if name in ours] == ours
    last = folder / f"{numbers[len(FUSIONS)]}-{FUSIONS[-1].__name__}.py"
    text = last.read_text()
    while text.startswith("# nothing changed: as in "):
        text = (folder / text.split()[-1]).read_text()
    assert "decode_tokens" in text
    assert not list(folder.rglob("*.part"))

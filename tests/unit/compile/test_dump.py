"""What `--dump-ir` writes, for every target with kernels of a device."""

import re
from pathlib import Path

import pytest

from gemma4_compile.compile.dump import Dump
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import ArtifactError
from tests.marks import slow_unless
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


@pytest.mark.parametrize(
    ("target", "suffix", "begins"),
    slow_unless(
        lambda target, *_: target != "metal",
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
            dump_ir=folder,
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

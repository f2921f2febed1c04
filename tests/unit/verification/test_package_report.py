"""What reports of decoders and encoders share: the verdict, and the files in the package."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from gemma4_compile.errors import VerificationError
from gemma4_compile.package import files
from gemma4_compile.runtime.package.package import read_provenance
from gemma4_compile.types import JsonObject
from gemma4_compile.verification.package_report import PackageReport, write_report


@dataclass(frozen=True)
class Measured:
    """A comparison with these measures beyond its bounds."""

    failures: tuple[str, ...] = ()

    def to_json(self) -> JsonObject:
        return {"failures": len(self.failures)}


def report(*failures: tuple[str, ...]) -> PackageReport:
    arithmetic, whole, others = failures
    found = (Measured(arithmetic), Measured(whole), {"kl": 0.5}, others)
    return PackageReport({"text": 1}, *found, names=("numerics.json",))


def test_every_measure_beyond_its_bound_is_a_failure() -> None:
    found = report(("a",), ("b", "c"), ("d",))
    expected = ("arithmetic: a", "against the checkpoint: b", "against the checkpoint: c", "d")
    assert found.failures == expected
    assert not found.passed
    with pytest.raises(VerificationError, match=r"^arithmetic: a$") as caught:
        found.check(Path("out"))
    assert caught.value.hint == "all measures are in out/numerics.json"
    assert found.content("schema", 3) == {
        "schema": "schema",
        "schema_version": 3,
        "passed": False,
        "failures": list(expected),
        "text": 1,
        "arithmetic": {"failures": 1},
        "whole": {"failures": 2},
        "consistency": {"kl": 0.5},
    }
    good = report((), (), ())
    assert good.passed
    good.check(Path("out"))


def test_files_of_a_report_replace_those_of_their_names_alone(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for name in ("model.so", "numerics.json", "numerics-other.json"):
        (package / name).write_text("old")
    before = files.finish(package, "model.so", {"target": "cpu"})
    write_report(package, before, {"numerics.json": {"passed": True}, "numerics.svg": "<svg/>"})
    assert json.loads((package / "numerics.json").read_text()) == {"passed": True}
    assert (package / "numerics.svg").read_text() == "<svg/>"
    after = read_provenance(package)
    assert {*after.files} == {*before.files, "numerics.svg"}
    for name in ("model.so", "numerics-other.json"):
        assert (package / name).read_text() == "old"
        assert after.files[name] == before.files[name]
    assert after.files["numerics.json"] != before.files["numerics.json"]

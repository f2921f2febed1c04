"""The npm package gemma4-web: its types, its own tests, and what `npm pack` makes of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.child import run_within
from tests.web.dawn import TIMEOUT_S
from tests.web.npm_pack import WEB, packed_module

PACKED = {
    "package.json",
    "LICENSE",
    "README.md",
    "dist/choose.d.ts",
    "dist/choose.js",
    "dist/choose/fits.d.ts",
    "dist/choose/options.d.ts",
    "dist/choose/provenance.d.ts",
    "dist/choose/table_place.d.ts",
    "dist/fast.d.ts",
    "dist/fast.js",
    "dist/library/beginning_files.d.ts",
    "dist/profile/times.d.ts",
    "dist/speculative/drafter_options.d.ts",
    "dist/stats.d.ts",
}
USER = """
import { chooseLibrary } from "gemma4-web/choose";
import { disable, profile, stats, type Choice, type Profile, type Stats } from "gemma4-web/fast";
const seen: Stats = stats();
const count: number = seen.aheadSteps;
const reasons: string[] = seen.reasons;
// @ts-expect-error: the types are there, and no `any`
const wrong: string = seen.aheadSteps;
const url = "https://example.org/";
const choice: Promise<Choice> = chooseLibrary(url, undefined, { measure: false });
disable();
const profiled: Promise<Profile> = profile(async () => undefined);
export { choice, profiled, count, reasons, wrong };
"""


@pytest.fixture(scope="module", autouse=True)
def _needs_npm() -> None:
    if shutil.which("npm") is None:
        pytest.skip("Node is not installed (apt-get install nodejs)")
    if not (WEB / "node_modules" / "vitest").is_dir():
        pytest.skip("npm packages are not installed: run `npm ci` in web")


def run(command: Sequence[str | Path], directory: Path) -> str:
    done = run_within(TIMEOUT_S, command, cwd=directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_types() -> None:
    run(["npm", "run", "--silent", "types"], WEB)


def test_modules() -> None:
    run(["npm", "test", "--silent"], WEB)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed_module(tmp_path_factory)


def test_npm_pack_holds_what_a_user_needs_and_nothing_else(packed: Path) -> None:
    files = {path.relative_to(packed).as_posix() for path in packed.rglob("*") if path.is_file()}
    assert files == PACKED
    package = json.loads((packed / "package.json").read_text("utf-8"))
    assert "dependencies" not in package
    assert package["exports"]["./fast"]["default"] == "./dist/fast.js"
    assert (packed / "LICENSE").read_bytes() == (WEB.parent / "LICENSE").read_bytes()


def test_build_writes_files_without_imports(packed: Path, tmp_path: Path) -> None:
    """Alone in a folder: an import of anything, now or later, would fail or be seen."""
    (tmp_path / "choose.mjs").write_bytes((packed / "dist" / "choose.js").read_bytes())
    program = "console.log(JSON.stringify(Object.keys(await import('./choose.mjs'))))"
    assert "chooseLibrary" in json.loads(run(["node", "-e", program], tmp_path))
    lone = tmp_path / "fast.mjs"
    lone.write_bytes((packed / "dist" / "fast.js").read_bytes())
    program = (
        "const found = await import('./fast.mjs');"
        "console.log(JSON.stringify([Object.keys(found), found.stats().reasons]));"
    )
    told = run(["node", "--input-type=module", "-e", program], tmp_path)
    names, reasons = json.loads(told)
    assert {"chooseLibrary", "disable", "stats"} <= set(names)
    assert reasons == ["there is no WebGPU in this thread"]
    lexer = (WEB / "node_modules" / "es-module-lexer" / "dist" / "lexer.js").as_uri()
    program = (
        f"import {{ init, parse }} from {json.dumps(lexer)}; import fs from 'node:fs'; await init;"
        "console.log(JSON.stringify(parse(fs.readFileSync('fast.mjs', 'utf8'))[0]));"
    )
    assert json.loads(run(["node", "--input-type=module", "-e", program], tmp_path)) == []


COMPILERS = [("ESNext", "bundler"), ("NodeNext", "NodeNext")]


@pytest.mark.parametrize(("module", "resolution"), COMPILERS)
def test_types_are_found_by_a_users_compiler(
    packed: Path, tmp_path: Path, module: str, resolution: str
) -> None:
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "gemma4-web").symlink_to(packed)
    (tmp_path / "user.mts").write_text(USER)
    compiler = WEB / "node_modules" / "typescript" / "bin" / "tsc"
    options = ["--strict", "--noEmit", "--target", "ES2022", "--types", ""]
    options += ["--module", module, "--moduleResolution", resolution]
    run(["node", compiler, *options, "user.mts"], tmp_path)

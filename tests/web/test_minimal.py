"""The recipe of docs/web.md for a page of one's own: its four commands, then a chat in Chromium."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.child import first_line, run_within
from tests.web.cpu_runtime import ENOUGH, MARGIN, Questions, Runtime, assistant, system, user
from tests.web.dawn import TIMEOUT_S, run_driver

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
EXAMPLE = Path("examples") / "web-minimal"
README = (ROOT / "README.md").read_text("utf-8")
WEB = (ROOT / "docs/web.md").read_text("utf-8")
UNREACHABLE = re.compile("ENOTCACHED|EAI_AGAIN|ENOTFOUND|ECONN|ETIMEDOUT|ENETUNREACH")


def recipe() -> list[str]:
    """Return the commands of the page's block about the example, without what explains them."""
    (block,) = (each for each in WEB.split("```")[1::2] if "web-minimal" in each)
    return [line.split(" #")[0].strip() for line in block.strip().splitlines()]


def test_the_recipe_has_four_lines() -> None:
    compiles, installs, builds, serves = recipe()
    assert compiles.startswith("gemma4-compile tiny ")
    assert "npm ci" in installs
    assert "npm run build" in builds
    assert serves.startswith("gemma4-serve ")


def test_the_readmes_code_is_the_examples() -> None:
    code = README.split("```ts\n")[1].split("```")[0]
    example = (ROOT / EXAMPLE / "main.js").read_text("utf-8")
    imports, _, call = code.partition("\n\n")
    assert example.startswith(f"{imports}\n")
    at, _, rest = call.partition("\n")
    assert at.startswith("const at = ")
    body, closing = rest.rsplit("});", 1)
    assert body in example
    assert not closing.strip()


@pytest.fixture(scope="module")
def clone(browser: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the clone to the recipe; what the recipe writes stays in it."""
    root = tmp_path_factory.mktemp("clone")
    ignored = shutil.ignore_patterns("node_modules", "dist")
    shutil.copytree(ROOT / EXAMPLE, root / EXAMPLE, ignore=ignored)
    (root / "web").symlink_to(ROOT / "web")
    return root


@pytest.fixture(
    scope="module",
    params=["default,f16", pytest.param("", id="all", marks=pytest.mark.exhaustive)],
)
def address(request: pytest.FixtureRequest, clone: Path) -> Iterator[str]:
    """Where the recipe serves the page.

    With two of the nine libraries; test_nine_libraries.py and test_libraries.py have all of them.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # npm's own cache goes before the network.
    environment = {**os.environ, "PATH": path, "npm_config_prefer_offline": "true"}
    compiles, *commands, last = recipe()
    compiles += f" --libraries {request.param}" if request.param else " --force"
    for command in (compiles, *commands):
        done = run_within(TIMEOUT_S, ["bash", "-ec", command], cwd=clone, env=environment)
        if done.returncode != 0 and "npm ci" in command and UNREACHABLE.search(done.stderr):
            pytest.skip("npm's registry cannot be reached, and its cache lacks the client")
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    # A free port, since others may run beside this test.
    serve = ["bash", "-c", f"exec {last} --port 0 --no-open"]
    with subprocess.Popen(
        serve, cwd=clone, env=environment, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            yield first_line(server, 120)
        finally:
            server.kill()


def test_the_page_answers_as_the_python_runtime(
    address: str, browser: str, runtime: Runtime, questions: Questions, folder: Path
) -> None:
    first, second = questions.stopping
    said = []
    messages = [system("")]  # the client opens every chat with a system turn
    for question in (first, second):
        messages.append(user(question))
        tokens, margin = runtime.greedy(runtime.prompt(messages), ENOUGH)
        said.append((runtime.decode(tokens), len(tokens), margin > MARGIN))
        messages.append(assistant(said[-1][0]))
    job = {
        "url": address,
        "chromium": browser,
        "output": str(folder),
        "questions": [first, second],
    }
    answers = run_driver("minimal_driver.mjs", job, folder, os.environ)["answers"]
    assert said[0][2], "a question whose answer is clear"
    for told, (text, count, is_clear) in zip(answers, said, strict=True):
        assert told["text"] if not is_clear else told["text"] == text
        assert told["changes"] > count / 2, "the answer comes piece by piece"

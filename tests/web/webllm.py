"""Runs stock WebLLM in headless Chromium (`chromium_driver.mjs`) on a package."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.web.dawn import LAVAPIPE, library_of, run_driver

FIREFOXES = ("firefox-esr", "firefox")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(frozen=True)
class Reply:
    """One answer of the client, and every token id that the model had been given when it ended."""

    text: str
    finish: str
    usage: Mapping[str, Any]
    chunks: int
    watched: tuple[int, ...]
    logprobs: Mapping[str, Any] | None


def find_browser() -> str | None:
    """Return the browser: the CHROMIUM environment variable, else the first known name in PATH."""
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def find_firefox() -> str | None:
    """Return Firefox: the FIREFOX environment variable, else the first known name in PATH."""
    named = os.environ.get("FIREFOX")
    if named:
        return shutil.which(named)
    return next((found for name in FIREFOXES if (found := shutil.which(name))), None)


def chat(
    messages: Sequence[Mapping[str, str]], *, interrupt_after: int | None = None, **request: Any
) -> dict[str, Any]:
    """Return a chat step for `run_in_webllm`; the rest is the request as OpenAI's API names it."""
    step: dict[str, Any] = {"op": "chat", "request": {"messages": list(messages), **request}}
    if interrupt_after is not None:
        step["interruptAfter"] = interrupt_after
    return step


def run_in_webllm(
    package: Path,
    steps: Sequence[Mapping[str, Any]],
    folder: Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    fast: Path | None = None,
) -> list[Reply]:
    """Load a package, run the steps, return the replies of the chat steps in order.

    `fast` is the folder of the built module that the page imports before the client; what it did is
    in result.json.

    An uncaptured WebGPU error, an exception in the page or a console error fails the run.
    """
    result = drive_webllm(package, steps, folder, overrides=overrides, fast=fast)
    return [
        reply_of(told)
        for step, told in zip(steps, result["results"], strict=True)
        if step["op"] == "chat"
    ]


def reply_of(told: Mapping[str, Any]) -> Reply:
    """Return the reply of a chat step's result."""
    return Reply(
        text=told["text"],
        finish=told["finish"],
        usage=told["usage"],
        chunks=told.get("chunks", 0),
        watched=tuple(told["watched"]),
        logprobs=told.get("logprobs"),
    )


def drive_webllm(
    package: Path,
    steps: Sequence[Mapping[str, Any]],
    folder: Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    fast: Path | None = None,
    firefox: str | None = None,
    init: str | None = None,
    embeds: bool = False,
) -> dict[str, Any]:
    """Run steps (see `chromium_driver.mjs`); return its whole result.

    `firefox` is the browser instead of Chromium, `init` a script that runs before the page's own,
    `embeds` says that the package is one of embeddings.
    """
    job = {
        "overrides": dict(overrides or {}),
        "steps": list(steps),
        **({"init": init} if init else {}),
        **({"embeds": True} if embeds else {}),
    }
    return _drive("chromium_driver.mjs", job, package, folder, fast, firefox)


def drive_workers(
    package: Path,
    asked: Sequence[str],
    tokens: int,
    folder: Path,
    *,
    fast: Path,
    firefox: str | None = None,
    tabs: bool = False,
    rows: bool = False,
) -> dict[str, Any]:
    """Ask two engines at the same time, and one the last text; see `worker_driver.mjs`."""
    requests = [
        {
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "max_tokens": tokens,
        }
        for text in asked
    ]
    job = {"requests": requests[:-1], "one": requests[-1], "tabs": tabs, "rows": rows}
    return _drive("worker_driver.mjs", job, package, folder, fast, firefox)


def _drive(
    script: str,
    job: Mapping[str, Any],
    package: Path,
    folder: Path,
    fast: Path | None,
    firefox: str | None,
) -> dict[str, Any]:
    browser = firefox or find_browser()
    assert browser is not None, "no browser"
    whole = {
        "package": str(package.resolve()),
        "library": library_of(package),
        "firefox" if firefox else "chromium": browser,
        "output": str(folder.resolve()),
        **job,
        **({"fast": str(fast)} if fast else {}),
    }
    environment = LAVAPIPE.environment(folder) if firefox else os.environ
    return run_driver(script, whole, folder, environment)

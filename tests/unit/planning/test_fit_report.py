"""What is said of a budget's choices."""

from __future__ import annotations

import json

from gemma4_compile.planning.fit_report import Fitted, Step, fit_rows, run_options

STEPS = {
    "recipe": Step("q4f16", instead_of="q8f16", saves_bytes=3 << 30),
    "context": Step(8192, given=True),
    "prefill_chunk": Step(512),
    "libraries": Step(["f16"], instead_of=["default", "f16"], saves_bytes=5 << 20),
}


def test_rows_say_what_was_chosen_and_what_given_up() -> None:
    entry = Fitted(8 << 30, 512 << 20, None, 7 << 30, STEPS).to_json()
    assert fit_rows(json.loads(json.dumps(entry))) == [
        ("fit", "7.00 GiB of 7.50 GiB, 512.0 MiB more for the driver and other programs"),
        ("recipe", "q4f16 (q8f16: 3.00 GiB more)"),
        ("context", "8,192 (as given)"),
        ("prefill chunk", "512"),
        ("libraries", "f16 (with default: 5.0 MiB more)"),
    ]


def test_a_device_is_named_and_has_no_margin() -> None:
    rows = fit_rows(Fitted(3 << 30, 0, "phone, 8 GB", 1 << 30, {}).to_json())
    assert rows == [("fit", "1.00 GiB of 3.00 GiB on phone, 8 GB")]


def test_what_cannot_be_built_is_not_called_too_large() -> None:
    step = Step(65_536, instead_of=131_072, saves_bytes=1, problem="keys need too much")
    entry = Fitted(8 << 30, 0, None, 1, {"context": step}).to_json()
    assert fit_rows(entry)[1][1] == "65,536 (131,072 cannot be built: keys need too much)"


def test_what_was_placed_on_the_host_is_run_so() -> None:
    steps = {
        "per_layer_table": Step("host", instead_of="gpu", saves_bytes=1),
        "experts": Step("50%", instead_of="100%", saves_bytes=1),
    }
    assert run_options(Fitted(1, 0, None, 1, steps).to_json()) == " --ple host --experts 50%"
    kept = {"per_layer_table": Step("gpu"), "experts": Step("100%")}
    assert run_options(Fitted(1, 0, None, 1, kept).to_json()) == ""
    assert run_options(Fitted(1, 0, None, 1, STEPS).to_json()) == ""

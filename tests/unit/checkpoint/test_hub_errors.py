"""Troubles on the way to the hub, told apart, each with what to do."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from huggingface_hub import errors as hub_errors

from gemma4_compile.checkpoint.hub_errors import clear_errors, first_line, http_status
from gemma4_compile.errors import CheckpointError, ConfigError


def unreachable(why: Exception) -> Exception:
    error = hub_errors.LocalEntryNotFoundError("x")
    error.__cause__ = why
    return error


def told(error: Exception) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught, clear_errors("a/b", None):
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (unreachable(OSError("[Errno -2] Name or service not known")), "DNS"),
        (unreachable(OSError("[SSL: CERTIFICATE_VERIFY_FAILED] failed")), "SSL_CERT_FILE"),
        (unreachable(OSError("407 Proxy Authentication Required")), "HTTPS_PROXY"),
        (unreachable(ConnectionRefusedError(111, "Connection refused")), "HF_HUB_OFFLINE"),
        (OSError(errno.ENOSPC, "No space left on device"), "HF_HOME"),
        (PermissionError(errno.EACCES, "Permission denied"), "HF_HOME"),
    ],
)
def test_each_trouble_has_its_own_way_out(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert words in str(told(error).hint)


def test_offline_mode_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    error = told(hub_errors.LocalEntryNotFoundError("x"))
    assert "HF_HUB_OFFLINE is set" in str(error)
    assert "without HF_HUB_OFFLINE" in str(error.hint)


@pytest.mark.parametrize("status", [500, 503])
def test_an_answer_is_found_behind_other_errors(status: int) -> None:
    cause = RuntimeError("x")
    vars(cause)["response"] = SimpleNamespace(status_code=status)
    error = unreachable(cause)
    assert http_status(error) == status
    assert f"trouble of its own ({status})" in str(told(error))


def test_errors_of_the_checkpoint_stay_as_they_are() -> None:
    with pytest.raises(ConfigError, match="mine"), clear_errors("a/b", None):
        raise ConfigError("mine")


def test_an_error_without_text_is_called_by_its_class() -> None:
    assert first_line(ValueError()) == "ValueError"
    assert first_line(ValueError("a\nb")) == "a"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500])
def test_a_token_that_an_answer_repeats_is_not_shown(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    request = "https://huggingface.co/a/b/resolve/main/config.json"
    response = SimpleNamespace(status_code=status, url=request)
    error = hub_errors.HfHubHTTPError.__new__(hub_errors.HfHubHTTPError)
    Exception.__init__(error, "no right for hf_secret")
    vars(error).update(response=response, server_message="no right for hf_secret")
    shown = told(error)
    assert "no right for (the token)" in str(shown)
    assert "hf_secret" not in f"{shown} {shown.hint}"


def test_a_model_that_was_taken_away_is_no_matter_of_tokens_or_networks() -> None:
    for status, kind in ((403, hub_errors.DisabledRepoError), (451, hub_errors.HfHubHTTPError)):
        error = kind.__new__(kind)
        Exception.__init__(error, "x")
        vars(error).update(response=SimpleNamespace(status_code=status, url=""))
        assert "has taken `a/b` away" in str(told(error))

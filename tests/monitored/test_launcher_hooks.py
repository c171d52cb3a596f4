"""The note of a failed process for `hookline launch --spmd --restart`: errors that may pass leave none."""

from __future__ import annotations

import jax
import pytest

from hookline import errors
from hookline.monitored import launcher_hooks


def raised(error, cause=None):
    try:
        raise error from cause
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "is_noted"),
    [
        (ValueError("a bad record"), True),
        (FileNotFoundError("data.npz"), True),
        (SystemExit(3), True),
        (SystemExit(75), False),
        (ConnectionError("reset"), False),
        (raised(RuntimeError("a batch cannot be read"), ConnectionError("reset")), False),
        (errors.AbortedError.from_message("Process 1 is lost."), False),
        (jax.errors.JaxRuntimeError("UNAVAILABLE: failed to connect"), False),
        (ValueError("Gloo AllReduce failed: Read timeout"), False),
    ],
)
def test_error_that_may_pass_is_not_noted(tmp_path, monkeypatch, error, is_noted):
    path = str(tmp_path / "failure")
    launcher_hooks.pop_environment(launcher_hooks.environment(path))
    launcher_hooks.note_failure(error)
    launcher_hooks.pop_environment({})
    assert (launcher_hooks.read_failure(path) is not None) == is_noted


def test_failure_at_another_step_is_no_repetition():
    first = launcher_hooks.Failure("ValueError: x", [0], 12, has_saved=False)
    assert launcher_hooks.Failure("ValueError: x", [0], 12, has_saved=False).repeats(first)
    assert not launcher_hooks.Failure("ValueError: x", [0], 8, has_saved=False).repeats(first)

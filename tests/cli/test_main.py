"""The words of the `hookline` command."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

from hookline import errors
from hookline.cli import main


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"hookline {version('hookline')}\n"


def test_missing_command_lists_the_commands():
    done = subprocess.run([sys.executable, "-m", "hookline.cli"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "usage: hookline" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--spmd", "--stallsecs", "3"], "there is no option --stallsecs. Did you mean --stall-secs?"),
        (["--spmd", "--process", "2"], "there is no option --process. Did you mean --processes?"),
        (["--spmd", "--process=2"], "there is no option --process=2. Did you mean --processes?"),
        (["--zzz"], "there is no option --zzz."),
        (["--stall-secs", "-3"], "argument --stall-secs: requires a number of seconds above 0, got '-3'"),
        (["--stall-secs", "0"], "argument --stall-secs: requires a number of seconds above 0, got '0'"),
        (["--grace", "nan"], "argument --grace: requires a number of seconds of at least 0, got 'nan'"),
    ],
)
def test_wrong_option_gets_the_usage_of_its_command_and_a_near_name(capsys, words, message):
    with pytest.raises(SystemExit, match="2"):
        main(["launch", *words, __file__, "--not-an-option-of-the-command"])
    err = capsys.readouterr().err
    assert err.startswith("usage: hookline launch ")
    assert err.endswith(f"hookline launch: error: {message}\n")


def test_stop_needs_an_existing_cluster(capsys, monkeypatch):
    def refuse(*arguments):
        raise errors.UnavailableError(None, None, "gone")

    monkeypatch.setattr("hookline.distributed.cluster.ray_connection.connect", refuse)
    assert main(["stop", "--address", "127.0.0.1:1", "--job", "mine"]) == 1
    assert capsys.readouterr().err == "hookline stop: gone\n"


def test_closed_output_is_an_error(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["inspect", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "hookline: the standard output is closed.\n"

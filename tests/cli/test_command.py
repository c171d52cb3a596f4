"""The command as a process: its help, start time, pipes, Ctrl-C, completion, and missing extras."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests import python
from tests.terminal import Terminal

from hookline.cli import main

# The parsed examples of its help.
from hookline.cli.main import parser

COMMANDS = ["runs", "inspect", "report", "account", "diff", "events", "clean", "launch", "stop", "completion"]
LIGHT = """
import sys
from hookline.cli import main
for line in ["--help", "inspect --help", "inspect", "events a --csv --json", "clean a --keep 0", "no such",
             f"launch --processes 2 {sys.argv[1]}"]:
    words = line.split()
    try:
        status = main(words)
    except SystemExit as error:
        status = error.code
    assert status == (0 if "--help" in words else 2), words
print(sorted({"jax", "numpy", "orbax", "tensorboard", "rich", "ray"} & set(sys.modules)))
"""


def test_help_and_usage_errors_import_no_library():
    done = subprocess.run([sys.executable, "-c", LIGHT, __file__], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_valid_examples(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    examples = re.findall(r"^  (?:eval \"\$\()?hookline ([^|>#\"\n]*?)\)?\s*(?:[|>#\")].*)?$", text, re.MULTILINE)
    assert examples or command == "stop"
    for example in examples:
        assert parser().parse_args(example.replace("'", "").split()).command == command


@pytest.mark.parametrize("words", [["inspect", "--json"], ["events", "--csv"], ["diff", "--json"]])
def test_closed_pipe_ends_the_command_silently(shared_run, words):
    runs = [shared_run] * (2 if words[0] == "diff" else 1)
    with python.Python("-m", "hookline.cli", *words, *runs) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        assert (process.communicate(timeout=60)[1], process.wait()) == ("", 128 + signal.SIGPIPE)


INTERRUPTED = """
import signal, sys
from hookline.checkpoint.restoring import inspection
from hookline.cli import main
values = inspection.read_values
def interrupted(path, wanted):
    for value in values(path, wanted):
        signal.raise_signal(signal.SIGINT)
        yield value
inspection.read_values = interrupted
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_ends_the_command_silently(shared_run):
    done = python.run("-c", INTERRUPTED, "inspect", shared_run)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")


def test_row_in_a_pipe_is_one_plain_line(shared_run):
    words = ["inspect", shared_run, "--all"]
    done = python.run("-m", "hookline.cli", *words, env=os.environ | {"COLUMNS": "30"}, check=True)
    assert "\x1b" not in done.stdout
    hooks = [line for line in done.stdout.splitlines() if line.startswith("hooks/")]
    assert len(hooks) == 20
    assert all(" = " in line for line in hooks)
    assert done.stderr == ""


def test_table_on_a_terminal_is_wrapped_not_truncated(shared_run):
    terminal = Terminal(columns=60)
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    with python.Python(
        "-m", "hookline.cli", "inspect", shared_run, "--all", stdout=terminal.file.fileno(), env=environment
    ) as it:
        assert it.wait(60) == 0
    assert max(map(len, terminal.screen)) <= 60
    assert "\x1b[1m" in terminal.text
    joined = "".join(line.partition(" ")[0] for line in terminal.screen)
    assert "hooks/hookline.CheckpointSaverHook[model.ckpt]/trigger/elapsed_secs" in joined


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_has_valid_syntax(shell, capsys, tmp_path):
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert all(word in script.read_text() for word in [*COMMANDS, "keep", "no-values"])
    if found := shutil.which(shell):
        subprocess.run([found, "-n", str(script)], check=True, timeout=60)


@pytest.mark.skipif(shutil.which("bash") is None, reason="it takes a bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("hookline in", {"inspect"}),
        ("hookline clean --k", {"--keep"}),
        ("hookline inspect runs/a/mod", {"runs/a/model.ckpt-1"}),
    ],
)
def test_bash_completes_commands_options_and_folders(line, expected, capsys, tmp_path):
    (tmp_path / "runs" / "a" / "model.ckpt-1").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "model.txt").touch()
    assert main(["completion", "bash"]) == 0
    words = line.split()
    script = capsys.readouterr().out + (
        f"\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _shtab_hookline; printf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
    )
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert set(done.stdout.split()) == expected, done.stderr


def test_missing_shtab_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "pip install shtab" in capsys.readouterr().err


def test_page_shows_each_command():
    page = (Path(__file__).parents[2] / "docs" / "command.md").read_text(encoding="utf-8")
    assert all(f"hookline {command}" in page for command in COMMANDS)

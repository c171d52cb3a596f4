"""Processes of the fork server behave like a new interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from subprocess import PIPE

import pytest
from tests.python import Python, run


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("raise SystemExit(7)", 7),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("def f(a: undefined): pass", 1),
        ("import tests", 1),
        ("import sys; sys.exit(sys.argv != ['-c', 'a', 'b'])", 0),
        ("import os; os.environ['HOME_OF_TESTS']", 1),
        ("import jax; raise SystemExit(jax.device_count())", 3),
    ],
)
def test_server_process_ends_like_an_interpreter(code, status, tmp_path):
    env = {"PATH": os.environ["PATH"], "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "3"}
    arguments = ["-c", code, "a", "b"]
    expected = subprocess.run([sys.executable, *arguments], cwd=tmp_path, env=env, capture_output=True, text=True)
    done = run(*arguments, cwd=tmp_path, env=env)
    assert done.returncode == expected.returncode == status, (done.stderr, expected.stderr)
    assert done.stderr.splitlines()[-1:] == expected.stderr.splitlines()[-1:]


def test_script_finds_modules_beside_it_and_in_the_path(tmp_path):
    for folder, name in (("scripts", "beside"), ("others", "elsewhere")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text("")
    script = tmp_path / "scripts" / "script.py"
    script.write_text("import beside, elsewhere, sys; print(__file__, *sys.argv)")
    done = run(script, "word", env=os.environ | {"PYTHONPATH": str(tmp_path / "others")}, check=True)
    assert done.stdout == f"{script} {script} word\n"


def test_unbuffered_output_is_there_though_the_process_is_killed():
    process = Python("-u", "-c", "import sys; print('here', end=''); sys.stdin.read()", stdin=PIPE)
    assert process.stdout.read(4) == "here"
    process.kill()
    assert process.communicate() == ("", "")
    assert process.returncode == -signal.SIGKILL


def test_process_responds_and_a_wait_may_time_out():
    process = Python("-c", "print(input() + '!')", stdin=PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert process.poll() is None
    assert process.communicate("yes\n") == ("yes!\n", "")
    process.kill()  # It has ended: nobody else gets the signal.


def test_two_servers_have_different_hash_seeds_and_alternate():
    both = [run("-c", "print(hash('text'))", server=server).stdout for server in (0, 1)]
    assert both[0] != both[1]
    assert {run("-c", "print(hash('text'))").stdout for _ in range(2)} == set(both)

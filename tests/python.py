"""Python processes for tests that start in 30 ms: each is forked from a process that has imported hookline.

All else is real: their own pid, signals, exit. What is about imports, or about what has to be set before them, starts
an interpreter of its own.
"""

from __future__ import annotations

import atexit
import functools
import gc
import io
import json
import logging
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Mapping
from subprocess import PIPE
from typing import IO, Any

_lock = threading.Lock()


class Python:
    """A Python process with the arguments of the interpreter; as `subprocess.Popen` with `text=True`.

    Without `env` it has the environment of the test. Processes of one `seed` have the same hashes of strings, others
    have others, as interpreters have.
    """

    def __init__(
        self,
        *arguments: object,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: int | None = None,
        stdout: int | None = PIPE,
        stderr: int | None = PIPE,
        seed: int = 0,
    ) -> None:
        self.args = list(map(str, arguments))
        self.returncode: int | None = None
        self.stdin, self.stdout, self.stderr, theirs = None, None, None, []
        for name, number, given in (("stdin", 0, stdin), ("stdout", 1, stdout), ("stderr", 2, stderr)):
            if given == PIPE:
                ends = os.pipe()
                mine, other = reversed(ends) if number == 0 else ends
                setattr(self, name, os.fdopen(mine, "w" if number == 0 else "r", encoding="utf-8"))
                theirs.append(other)
            else:
                theirs.append(os.dup(number if given is None else given))
        self._ended, end = socket.socketpair()
        with _lock:
            socket.send_fds(_mother(seed), [b"+"], [*theirs, end.fileno()])
        for descriptor in (*theirs, end.detach()):
            os.close(descriptor)
        request = {
            "arguments": self.args,
            "environment": dict(os.environ if env is None else env),
            "folder": os.fspath(cwd or os.getcwd()),
        }
        self._ended.sendall(json.dumps(request).encode())
        self._ended.shutdown(socket.SHUT_WR)
        self._told = self._ended.makefile()
        self.pid = int(self._told.readline())

    def poll(self) -> int | None:
        """Returns the exit status, as `subprocess` has it, or None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end and returns the exit status."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._ended, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._told.readline())
            self._told.close()
            self._ended.close()
        return self.returncode

    def communicate(self, input: str = "", timeout: float | None = None) -> tuple[str, str]:
        """Writes `input`, reads all that it prints, and waits for its end."""
        printed: dict[IO[str], str] = {}
        sources = [source for source in (self.stdout, self.stderr) if source and not source.closed]
        readers = [threading.Thread(target=lambda s=s: printed.update({s: s.read()}), daemon=True) for s in sources]
        for reader in readers:
            reader.start()
        if self.stdin and not self.stdin.closed:
            with self.stdin:
                self.stdin.write(input)
        self.wait(timeout)
        for reader, source in zip(readers, sources, strict=True):
            reader.join(timeout)
            source.close()
        return printed.get(self.stdout, ""), printed.get(self.stderr, "")

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Python:
        return self

    def __exit__(self, *exc: object) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe:
                pipe.close()
        self.wait()


def run(
    *arguments: object, check: bool = False, timeout: float | None = 300, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs Python to its end; kills it when the time is over."""
    process = Python(*arguments, **options)
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        raise
    done = subprocess.CompletedProcess(process.args, process.wait(), out, err)
    if check:
        assert done.returncode == 0, done.stderr
    return done


@functools.cache
def _mother(seed: int) -> socket.socket:
    """Returns the way to the process from which those of a seed are forked. It ends with this one."""
    mine, its = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.python", str(its.fileno())],
        env=os.environ | {"PYTHONHASHSEED": str(seed + 1), "JAX_PLATFORMS": "cpu"},
        cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        pass_fds=[its.fileno()],
        stdin=subprocess.DEVNULL,
    )
    its.close()

    def end() -> None:
        mine.close()
        process.wait()

    atexit.register(end)
    return mine


def _serve(control: socket.socket) -> dict[str, Any]:
    """Forks for each request; returns in the new process, with what was asked."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 4)
        if not message:
            os._exit(0)
        if not os.fork():
            break
        for descriptor in descriptors:
            os.close(descriptor)
        while _reap():
            pass
    control.close()
    *streams, end = descriptors
    with socket.socket(fileno=end) as told:
        request = json.load(told.makefile())
        if pid := os.fork():  # Stays to wait for it.
            for descriptor in streams:
                os.close(descriptor)
            told.sendall(f"{pid}\n".encode())
            told.sendall(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n".encode())
            os._exit(0)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    return request


def _reap() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return False


def _become(arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """Is an interpreter that was started like this."""
    import jax

    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.root.handlers.clear()  # What was imported has configured it.
    os.chdir(folder)
    for name, text in environment.items():  # JAX read them when it was imported.
        if name.startswith("JAX_") and os.environ.get(name) != text:
            jax.config.update(name.lower(), _as_given(text, getattr(jax.config, name.lower(), None)))
    os.environ.clear()
    os.environ.update(environment)
    paths = environment.get("PYTHONPATH", "")
    sys.path[:0] = [path for path in paths.split(os.pathsep) if path]
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = io.TextIOWrapper(
            os.fdopen(number, "wb", closefd=False),
            encoding="utf-8",
            errors="backslashreplace" if number == 2 else "strict",
            line_buffering=number == 2 or os.isatty(number),
            write_through="-u" in arguments[:1],
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", closefd=False)
    if arguments[0] == "-u":
        arguments = arguments[1:]
    if arguments[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        arguments = arguments[2:]
    if arguments[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = arguments[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if arguments[0] == "-c":
        sys.path.insert(0, "")
        sys.argv, code = ["-c", *arguments[2:]], compile(arguments[1], "<string>", "exec")
    else:
        sys.path.insert(0, os.path.dirname(arguments[0]))
        sys.argv, main.__file__ = arguments, arguments[0]
        with open(arguments[0], "rb") as file:
            code = compile(file.read(), arguments[0], "exec")
    exec(code, main.__dict__)


def _as_given(text: str, value: object) -> object:
    """Reads a setting of JAX from the environment as the kind of value that it has."""
    if isinstance(value, bool):
        return text.lower() in ("1", "true", "yes", "on")
    return type(value)(text) if isinstance(value, int | float) else text


if __name__ == "__main__":
    import orbax.checkpoint  # noqa: F401

    import hookline

    for part in hookline.__all__:
        getattr(hookline, part)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A Ctrl-C is for those that it forks.
    gc.collect()
    gc.freeze()
    _become(**_serve(socket.socket(fileno=int(sys.argv[1]))))

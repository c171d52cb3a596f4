"""A fork server for tests: Python processes that start in a fraction of a second, with hookline imported.

Their pid, signals, exit status and output are real. Not as in an interpreter of its own: the parent; hashes of strings,
of which there are two kinds; settings that are read at the start or by an import (`PYTHON...`, `OPENBLAS_NUM_THREADS`);
and warnings of imports. Tests of those, or of imports, start an interpreter of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import io
import itertools
import json
import logging
import operator
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
from pathlib import Path
from subprocess import PIPE
from typing import Any

_environment = dict(os.environ)  # A test may have patched its own.
_servers = itertools.cycle((0, 1))
_lock = threading.Lock()


class Python:
    """A Python process with these arguments of the interpreter, such as `-c CODE`, after `-u` if need be.

    It is what `subprocess.Popen` with `text=True` is, but that its output goes to pipes by default, and that
    `communicate` returns `""` where there is none.

    Args:
        arguments: As above.
        env: The environment; by default that of the test.
        cwd: The working directory.
        stdin, stdout, stderr: As of `Popen`.
        server: Which fork server starts it, 0 or 1: those of one have the same hashes of strings. By default they take
            turns, so that nothing can rely on an order of a set.
    """

    def __init__(
        self,
        *arguments: object,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: int | None = None,
        stdout: int | None = PIPE,
        stderr: int | None = PIPE,
        server: int | None = None,
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
        self._channel, end = socket.socketpair()
        with _lock:
            socket.send_fds(_fork_server(next(_servers) if server is None else server), [b"+"], [*theirs, end.fileno()])
        for descriptor in (*theirs, end.detach()):
            os.close(descriptor)
        request = {
            "arguments": self.args,
            "environment": dict(os.environ if env is None else env),
            "folder": os.fspath(cwd or os.getcwd()),
        }
        self._channel.sendall(json.dumps(request).encode())
        self._channel.shutdown(socket.SHUT_WR)
        self._answers, self._waiting = self._channel.makefile(), threading.Lock()
        self._readers: dict[str, threading.Thread] = {}
        self._printed: dict[str, str] = {}
        self.pid = int(self._answer())

    def _answer(self) -> str:
        line = self._answers.readline()
        assert line, "The fork server has ended; its errors are among those of the tests."
        return line

    def poll(self) -> int | None:
        """Returns the exit status, or None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end and returns the exit status."""
        with selectors.DefaultSelector() as selector:
            if self.returncode is None:
                selector.register(self._channel, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
        with self._waiting:
            if self.returncode is None:
                self.returncode = int(self._answer())
        return self.returncode

    def communicate(self, input: str = "", timeout: float | None = None) -> tuple[str, str]:
        """Writes `input`, reads all that it prints, and waits for its end. It may be called again after a timeout."""
        for name in ("stdout", "stderr"):
            if getattr(self, name) is not None and name not in self._readers:
                self._readers[name] = threading.Thread(target=self._read, args=(name,), daemon=True)
                self._readers[name].start()
        if self.stdin and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError), self.stdin:
                self.stdin.write(input)
        self.wait(timeout)
        for reader in self._readers.values():
            reader.join(timeout)
            if reader.is_alive():  # A child of it has the pipe.
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self._printed.get("stdout", ""), self._printed.get("stderr", "")

    def _read(self, name: str) -> None:
        pipe = getattr(self, name)
        with contextlib.suppress(ValueError), pipe:  # Somebody has closed it.
            self._printed[name] = pipe.read()

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
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

    def __del__(self) -> None:
        if hasattr(self, "_answers"):
            self._answers.close()
            self._channel.close()


def run(
    *arguments: object, check: bool = False, timeout: float | None = 300, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs Python to its end; kills it when the time is over."""
    process = Python(*arguments, **options)
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException as error:
        process.kill()
        error.add_note(f"It printed: {process.communicate(timeout=10)}")
        raise
    done = subprocess.CompletedProcess(process.args, process.wait(), out, err)
    if check:
        assert done.returncode == 0, done.stderr
    return done


@functools.cache
def _fork_server(number: int) -> socket.socket:
    """Starts a fork server and returns the way to it. It ends with this process."""
    mine, its = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-P", __file__, str(its.fileno())],
        env=_environment | {"PYTHONHASHSEED": str(number + 1), "JAX_PLATFORMS": "cpu"},
        pass_fds=[its.fileno()],
        stdin=subprocess.DEVNULL,
    )
    its.close()

    def end() -> None:
        mine.shutdown(socket.SHUT_RDWR)  # A process that a test has forked may have it, too.
        mine.close()
        process.wait()

    atexit.register(end)
    return mine


def _serve(control: socket.socket) -> dict[str, Any]:
    """Forks for each request; returns in the new process, with the request."""
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
    with socket.socket(fileno=end) as channel:
        request = json.load(channel.makefile())
        if pid := os.fork():  # Stays to wait for it.
            try:
                for descriptor in streams:
                    os.close(descriptor)
                channel.sendall(f"{pid}\n".encode())
                # It keeps its pid until its end is reported.
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                channel.sendall(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n".encode())
            finally:
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


def _run(arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """Runs a program as an interpreter would."""
    import jax

    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.root.handlers.clear()  # The imported modules have configured it.
    warnings.filterwarnings("ignore", message="Error (read|writ)ing persistent compilation cache entry")
    for category in (DeprecationWarning, FutureWarning):  # pytest does the same in its own process.
        warnings.filterwarnings("error", category=category, module=r"(hookline|hookline_tf1|tests|__main__)\b")
    os.chdir(folder)
    for name in sorted({*environment, *os.environ}):  # JAX read them when it was imported.
        if name.startswith("JAX_") and os.environ.get(name) != environment.get(name):
            setting, values = name.lower(), jax.config.values
            if setting in values:
                given = _as_given(environment[name], values[setting]) if name in environment else None
                jax.config.update(setting, given)
    os.environ.clear()
    os.environ.update(environment)
    is_unbuffered = arguments[0] == "-u"
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = io.TextIOWrapper(
            os.fdopen(number, "wb", 0 if is_unbuffered else -1, closefd=False),
            encoding="utf-8",
            errors="backslashreplace" if number == 2 else "strict",
            line_buffering=number == 2 or os.isatty(number),
            write_through=is_unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", closefd=False)
    kind, *rest = arguments[is_unbuffered:]
    folders = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [{"-c": "", "-m": os.getcwd()}.get(kind, os.path.dirname(kind)), *folders]
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if kind == "-c":
        sys.argv, source, name = ["-c", *rest[1:]], rest[0], "<string>"
    else:
        sys.argv, source, name = [kind, *rest], Path(kind).read_bytes(), kind
        main.__file__ = kind
    exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)


def _as_given(text: str, value: object) -> object:
    """Reads a setting of JAX from the environment as the kind of value that it has."""
    if isinstance(value, bool):
        return text.lower() in ("1", "true", "yes", "on")
    return type(value)(text) if isinstance(value, int | float) else text


def _import() -> None:
    import jaxlib.mlir.dialects.mhlo  # noqa: F401
    import orbax.checkpoint  # noqa: F401

    import hookline

    for part in [*hookline.__all__, "summary.Summary"]:
        operator.attrgetter(part)(hookline)
    if (count := threading.active_count()) != 1:
        raise RuntimeError(f"A process that forks must have one thread, it has {count}.")


if __name__ == "__main__":
    _import()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A Ctrl-C is for those that it forks.
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [path for path in sys.path if path not in given]
    gc.collect()
    gc.freeze()
    _run(**_serve(socket.socket(fileno=int(sys.argv[1]))))

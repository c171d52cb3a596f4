"""One process of `hookline launch --in-step`: joins the others, then runs the script as `python script.py` would.

It is run by its path, with the script and its arguments.
"""

import atexit
import contextlib
import os
import signal
import sys
from types import ModuleType

# Who was asked to end leaves together with the others.
_LEFT = (128 + signal.SIGTERM, 128 + signal.SIGINT)


def _main(path: str) -> None:
    """Runs the script in a module of its own, which is `__main__` from then on, for pickles too."""
    failure = _Failure()
    atexit.register(failure.end)  # The first to be registered is the last to be called.

    from hookline.distributed.in_step import initialize
    from hookline.errors import OpError

    try:
        initialize()
    except (OpError, ValueError) as error:
        failure.note(1)
        sys.exit(f"hookline launch: {error}")
    main, full_path = ModuleType("__main__"), os.path.abspath(path)
    main.__dict__.update(__file__=full_path, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    try:
        with open(path, "rb") as file:
            code = compile(file.read(), full_path, "exec", dont_inherit=True)
        exec(code, main.__dict__)
    except SystemExit as exit:
        if exit.code not in (None, 0, *_LEFT):
            failure.note(exit.code & 0xFF if isinstance(exit.code, int) else 1)
        raise
    except BaseException as error:
        if isinstance(error, RuntimeError) and "distributed.initialize" in str(error):
            error.add_note("The launcher has called it. Call hookline.distributed.initialize(): it does nothing here.")
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        from hookline.coordination import service

        failure.note(-signal.SIGINT if isinstance(error, KeyboardInterrupt) else service.left_with() or 1)
        sys.exit(1)


class _Failure:
    """How the script has failed, if it has. Else JAX waits at the end for the other processes."""

    def __init__(self) -> None:
        self._status = 0

    def note(self, status: int) -> None:
        """Takes note of the exit status, or minus the signal, with which this process ends without waiting."""
        from hookline.coordination import service

        self._status = status
        service.await_nobody()

    def end(self) -> None:
        """Ends a process that has failed, before the interpreter takes down what is connected with the others."""
        if not self._status:
            return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        if self._status < 0:
            signal.signal(-self._status, signal.SIG_DFL)
            os.kill(os.getpid(), -self._status)
        os._exit(self._status)


if __name__ == "__main__":
    del sys.argv[0]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
    _main(sys.argv[0])

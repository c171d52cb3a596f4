"""One process of `hookline launch --spmd`: joins the job, then runs the script as `python script.py` would.

The launcher runs this file by its path, with the script and its arguments.
"""

import os
import signal
import sys
from types import ModuleType

# The exit statuses after SIGTERM and Ctrl-C: all processes leave together.
_LEFT = (128 + signal.SIGTERM, 128 + signal.SIGINT)


def _main(path: str) -> None:
    """Runs the script in a new module `__main__`, so that pickles can refer to its names."""
    from hookline.coordination import heartbeat, process_group, service
    from hookline.distributed.cluster.initialize import initialize
    from hookline.errors import AbortedError, OpError
    from hookline.monitored import launcher_hooks
    from hookline.monitored.replaying.request import VARIABLE, ReplayRequest

    if (found := heartbeat.pop_environment(os.environ)) is not None:
        launcher_hooks.watch_for_stalls(*found)
    wanted = os.environ.pop(VARIABLE, None)
    launcher_hooks.pop_environment(os.environ)
    try:
        initialize()
    except (OpError, ValueError) as error:
        service.skip_exit_barrier(1)
        sys.exit(f"hookline launch: {error}")
    main, full_path = ModuleType("__main__"), os.path.abspath(path)
    main.__dict__.update(__file__=full_path, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    try:
        with open(path, "rb") as file:
            code = compile(file.read(), full_path, "exec", dont_inherit=True)
        if wanted is None:
            exec(code, main.__dict__)
        else:
            ReplayRequest.from_json(wanted).run(lambda: exec(code, main.__dict__))
    except SystemExit as exit:
        if (status := service.exit_status_of(exit)) not in (0, *_LEFT):
            launcher_hooks.note_failure(exit)
            service.skip_exit_barrier(status)
        raise
    except BaseException as error:  # Printed as Python would; the status shows the launcher whether this one failed.
        if isinstance(error, RuntimeError) and "distributed.initialize" in str(error):
            error.add_note(
                "The launcher has called jax.distributed.initialize. Call hookline.distributed.initialize() instead: "
                "it does nothing here."
            )
        launcher_hooks.note_failure(error)
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        if process_group.is_job_failure(error):
            print(f"hookline: {error}", file=sys.stderr)
        else:
            sys.excepthook(type(error), error, error.__traceback__)
        status = os.EX_TEMPFAIL if isinstance(error, AbortedError) or service.is_connection_loss(error) else 1
        service.skip_exit_barrier(-signal.SIGINT if isinstance(error, KeyboardInterrupt) else status)
        sys.exit(1)


if __name__ == "__main__":
    del sys.argv[0]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
    _main(sys.argv[0])

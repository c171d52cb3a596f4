"""One process of the tests of the SPMD start: its first argument chooses the action, and it prints the result."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading

import jax

import hookline as hl

# Times to wait, shortened, and the port that is taken.
from hookline.distributed.cluster import initialize as startup
from hookline.signals import preemption

ME = int(sys.argv[2]) if len(sys.argv) > 2 else 0
ADDRESS = sys.argv[3] if len(sys.argv) > 3 else ""
LOG: list[str] = []


class Log(logging.Handler):
    def emit(self, record):
        LOG.append(record.getMessage())


logging.getLogger("hookline").addHandler(Log())
logging.getLogger("hookline").setLevel(logging.INFO)


def say(**found):
    print(json.dumps(found), flush=True)


def error_of(call):
    try:
        call()
    except BaseException as error:
        return [type(error).__name__, str(error)]
    return None


def listening(port):
    """The local addresses of this machine, in hexadecimal, on which somebody listens at a port."""
    found = []
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(name, encoding="ascii") as lines:
            rows = [line.split() for line in list(lines)[1:]]
        found += [row[1].partition(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port]
    return found


def ours():
    """Started with arguments, and once more without."""
    hl.distributed.initialize(ADDRESS, num_processes=2, process_id=ME)
    hl.distributed.initialize()
    say(
        at=[jax.process_index(), jax.process_count()],
        listening=listening(int(ADDRESS.rpartition(":")[2])) if ME == 0 else None,
        log=LOG,
        early=error_of(lambda: jax.distributed.initialize(ADDRESS, 2, ME)),
    )


def trusting():
    """Started with the token that the environment names for this process, if any."""
    path = os.environ[f"TOKEN_{ME}"] or None
    say(error=error_of(lambda: hl.distributed.initialize(ADDRESS, 2, ME, token_path=path)), log=LOG)
    say(late=error_of(lambda: hl.distributed.initialize(token_path=__file__)))
    say(sealed=error_of(lambda: hl.distributed.initialize(require_token=True)) is None)
    os.environ["HOOKLINE_TOKEN_PATH"] = __file__
    say(late_and_required=error_of(lambda: hl.distributed.initialize(require_token=True)))


def scheduled():
    """Started without arguments, from a scheduler's environment variables."""
    hl.distributed.initialize()
    say(at=[jax.process_index(), jax.process_count()], log=LOG)


class Saves(hl.train.SessionRunHook):
    """Makes a session one that is worth leaving in order."""

    def save_on_failure(self, session, exception):
        pass


def own():
    """Started by the script's own call, between the signal handlers of two sessions."""
    before = preemption.SessionSignals(60, lambda: None, lambda: "nothing", lambda: False)
    before.open(graceful=True)
    jax.distributed.initialize(ADDRESS, 2, ME)
    preemption.reinstall_handlers()  # As a session does when it has been created.
    os.kill(os.getpid(), signal.SIGTERM)
    heard = before.shutdown_signal
    before.close()

    hl.distributed.initialize()
    step = hl.train.get_or_create_global_step()
    train_op = step.assign_add(1)
    say(heard=heard, log=[text for text in LOG if "heartbeat" in text])
    with hl.train.MonitoredSession(hooks=[Saves()]) as session:
        count = 0
        while not session.should_stop():
            session.run(train_op)
            count += 1
            if count == 10 and ME == 1:
                os.kill(os.getpid(), signal.SIGTERM)


def refused():
    """Starts that fail, and why; the last wait ends by its timeout, or by Ctrl-C."""
    say(nothing=error_of(hl.distributed.initialize))
    say(untrusted=error_of(lambda: hl.distributed.initialize("127.0.0.1:1", 2, 1, require_token=True)))
    say(absent=error_of(lambda: hl.distributed.initialize("127.0.0.1:1", 2, 1, token_path="/absent")))
    os.environ["HOOKLINE_COORDINATOR_ADDRESS"] = "127.0.0.1:1"
    say(half=error_of(hl.distributed.initialize))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        say(taken=error_of(lambda: hl.distributed.initialize(address, 1, 0)))
    say(alone=error_of(lambda: hl.distributed.initialize("127.0.0.1:1", 2, 1, start_timeout_secs=1)))
    os._exit(0)


def left_early():
    logging.basicConfig()
    startup._STUCK_SECS = 0.5
    hl.distributed.initialize(ADDRESS, 2, ME)
    if ME == 1:
        sys.exit()
    jax.devices()


def interrupted():
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    hl.distributed.initialize("127.0.0.1:1", 2, 1)


globals()[sys.argv[1]]()

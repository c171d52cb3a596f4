"""SignalCatcher to a launcher: thousands of them hang nothing, and the last one counts as well."""

from __future__ import annotations

from tests.python import run

WAITS = """
import os, signal, sys, threading
from hookline import clock
from hookline.cli.task import SignalCatcher

def send():
    for count in range(1000):
        for number in (signal.SIGTERM, signal.SIGINT):
            so_far = len(signals.caught)
            os.kill(os.getpid(), number)
            while len(signals.caught) == so_far:
                clock.sleep(0)

sys.setswitchinterval(1e-5)
with SignalCatcher() as signals:
    sender = threading.Thread(target=send)
    sender.start()
    while len(signals.caught) < 2000:
        assert signals.wait(10)
    sender.join()
print(len(signals.caught), signals.exit_status)
"""


def test_launchers_wait_misses_none_of_2000_signals():
    assert run("-c", WAITS, timeout=20).stdout == "2000 143\n"

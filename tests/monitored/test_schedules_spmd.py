"""Many seeded schedules with real SPMD processes: no hang, no differing decision, no wrong sum.

HOOKLINE_REAL_SCHEDULES is their number; four fifths of them are for two processes, the rest for four.
"""

import os
from pathlib import Path

import pytest
from tests import spmd

JOB = Path(__file__).parent / "schedules_job.py"
ASKED = int(os.environ.get("HOOKLINE_REAL_SCHEDULES", "4"))
IN_ONE_START = 50


def jobs():
    """Yields how many processes make which schedules."""
    for_four = ASKED // 5 if ASKED > IN_ONE_START else 0
    for processes, first, count in ((2, 0, ASKED - for_four), (4, ASKED - for_four, for_four)):
        for begin in range(first, first + count, IN_ONE_START):
            yield processes, begin, min(IN_ONE_START, first + count - begin)


@pytest.mark.parametrize(("processes", "first", "count"), list(jobs()))
def test_all_processes_agree_and_end_on_a_signal(processes, first, count):
    ended = spmd.run(JOB, first, count, 1, count=processes, timeout_secs=900)
    told = "\n".join(f"process {index}: {each.out[-300:]}\n{each.err[-3000:]}" for index, each in enumerate(ended))
    assert [each.status for each in ended] == [143] * processes, told
    lines = [each.out.splitlines() for each in ended]
    assert all(len(each) == 2 * count - 1 for each in lines), told  # The last one ends by the signal.
    assert all(each == lines[0] for each in lines), told

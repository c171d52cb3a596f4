"""Kills the job of `training` with SIGKILL, again and again, until it comes to its end.

Run in `tests` as `python -m resume.kills FOLDER STEPS_EACH KIND...`. Below the folder each kind of source gets a
directory, and so does the run that nobody interrupts, which comes first. What came of them is printed as JSON, one line
a job.
"""

from __future__ import annotations

import os
import sys


def main(folder, steps_each, kinds):
    # JAX and the libraries below it read these once. A thread in the process that forks would be missing in its child.
    os.environ.update(
        JAX_PLATFORMS="cpu",
        OPENBLAS_NUM_THREADS="1",
        OMP_NUM_THREADS="1",
        JAX_COMPILATION_CACHE_DIR=os.path.join(folder, "programs"),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
    )
    from .killing import kill_all

    kill_all(folder, steps_each, kinds)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])

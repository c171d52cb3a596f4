"""Kills training with SIGKILL, over and over, and checks that nothing which was reported as saved is ever lost.

Run in `tests` as `python -m reliability.crash --kills 1000`. A job is one training run that is started again after each
kill until it comes to its end; what must hold is in `crashing/checks.py`, the points at which it kills are in
`crashing/points.py`. Everything but the moment of a kill "at any time" follows from the seed, the number of a job and
the cards it was dealt: a violation comes with the arguments that repeat its job.
"""

from __future__ import annotations

import argparse
import os
import sys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="go on until so many processes were killed")
    parser.add_argument("--each", type=int, default=0, help="and until each point was hit so often")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=2, help="how many jobs run side by side")
    parser.add_argument("--only", type=int, help="run this job and no other")
    parser.add_argument("--lives", type=int, help="kill each job so often at most, then let it come to its end")
    parser.add_argument("--cards", help="the cards of the deck of points that are dealt, such as 3,17; all by default")
    settings = parser.parse_args()
    # JAX and the libraries below it read these once. A thread in the process that forks would be missing in its child.
    os.environ.update(JAX_PLATFORMS="cpu", OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    from .crashing.driver import Driver

    cards = None if settings.cards is None else [int(card) for card in settings.cards.split(",") if card]
    driver = Driver(
        settings.seed, settings.kills, settings.each, settings.at_once, settings.only, settings.lives, cards
    )
    return 0 if driver.drive() else 1


if __name__ == "__main__":
    sys.exit(main())

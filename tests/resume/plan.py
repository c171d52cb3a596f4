"""Where jobs are interrupted."""

from __future__ import annotations

import random

from .sources import LAST_STEP
from .training import SAVE_STEPS

SEED = 20
NEXT_TO_A_SAVE = ("manifest: before", "commit: before", "commit: after", "state file: after")
WHOLE = "uninterrupted"


def aims_of(kind, steps_each):
    """Returns where a job is killed, in order: at so many random steps, and twice amid its first saves or its last."""
    if kind == WHOLE:
        return []
    chance = random.Random(f"{SEED}/{kind}")
    saves, first = chance.sample(NEXT_TO_A_SAVE, 2), chance.random() < 0.5
    # Each kill amid a save comes at the first save of its process: so far, random steps are kept away from it.
    room = 2 * SAVE_STEPS
    steps = sorted(chance.sample(range(1 + room * first, LAST_STEP - room * (not first)), steps_each))
    at_steps = [f"{chance.choice(('before', 'after'))} {step}" for step in steps]
    return [*saves, *at_steps] if first else [*at_steps, *saves]


def steps_of(kind, way):
    """Returns the steps at which a job is interrupted within its process: at random ones, and around a save."""
    chance = random.Random(f"{SEED}/{kind}/{way}")
    save = SAVE_STEPS * chance.randrange(1, LAST_STEP // SAVE_STEPS)
    return {*chance.sample(range(1, LAST_STEP), 5), save + chance.choice((-1, 0, 1))}

"""Whatever comes between the runs, and in whatever order: hooks fire where a trigger that is asked every time would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.monitored.conftest import Reference

import hookline as hl
from hookline import train
from hookline.errors import AbortedError
from hookline.testing import FakeClock

TRIGGERS = {
    "every": lambda: train.every(4),
    "spaced": lambda: train.first_then_every(4),
    "secs": lambda: train.every(secs=3),
    "runs": lambda: train.every(runs=3),
    "first": train.first_run,
    "at": lambda: train.at_steps(3, 5, 17),
    "either": lambda: train.every(6) | train.every(secs=5) | train.every(runs=4),
    "both": lambda: train.every(2) & train.every(3),
}
RUNS = {"train": 1, "jump": 5, "idle": 0}


class Model:
    """The operations: `train` advances one step, `jump` five, `idle` none; each fails on request."""

    def __init__(self):
        step = train.get_or_create_global_step()
        self.faults = []
        fail = hl.host_op(self._pull).node()
        with hl.control_dependencies([fail]):
            self.fetches = {"train": step.assign_add(1), "jump": step.assign_add(5), "idle": hl.no_op()}
        self.raw_op = step.assign_add(2)

    def _pull(self):
        for _ in self.faults:
            raise self.faults.pop()
        return 0.0


@st.composite
def stories(draw):
    event = st.sampled_from([*RUNS, *RUNS, "train", "train", "raw", "back", "forth", "fail", "lose", "tick", "add"])
    return draw(st.lists(st.tuples(event, st.integers(1, 6)), min_size=1, max_size=25))


@given(story=stories())
def test_scheduled_hooks_fire_like_triggers_checked_at_every_run(story, fires):
    with hl.Graph().as_default(), FakeClock() as clock:
        model = Model()
        told = {}
        for kind, make in TRIGGERS.items():
            told[kind] = fires(make()), Reference(make())
            told[kind, "asks"] = fires(make(), "global_step:0"), Reference(make())
            told[kind, "late"] = fires(make(), "global_step:0", True), Reference(make())
            told[kind, "later"] = fires(make(), None, 3), Reference(make())
        for kind in ("every", "spaced", "runs"):
            for own in ("train", "jump"):
                told[kind, own] = fires(TRIGGERS[kind](), "global_step:0"), Reference(TRIGGERS[kind](), (own,))
        shared = train.first_then_every(5) | train.every(runs=4)
        reference = train.first_then_every(5) | train.every(runs=4)
        told["shared"] = told["shared, late"] = None, Reference(reference)
        told["shared"] = fires(shared), told["shared"][1]
        told["shared, late"] = fires(shared, "global_step:0", 2), told["shared, late"][1]
        hooks = [
            train.only_for(model.fetches[kind[1]], hook) if kind[-1] in RUNS else hook
            for kind, (hook, _) in told.items()
        ]
        references = {id(reference): reference for _, reference in told.values()}.values()
        policy = train.RecoveryPolicy(initial_backoff_secs=0, max_attempts=99)
        with train.MonitoredSession(hooks=hooks, recovery=policy) as session:
            play(story, session, model, clock, references)
        lost = any(event == "lose" for event, _ in story)
        for kind, (hook, reference) in told.items():
            if hook.deferred and lost:  # Values that have not arrived are dropped.
                steps = iter(reference.steps)
                assert all(step in steps for step in hook.steps), kind
            else:
                assert hook.steps == reference.steps, kind


def play(story, session, model, clock, references):
    step = 0
    for event, times in story:
        for _ in range(times):
            if event in (*RUNS, "fail", "lose", "add"):
                for reference in references:
                    reference.before(step)
            if event in RUNS:
                session.run(model.fetches[event])
                step += RUNS[event]
                for reference in references:
                    reference.after(event, step)
            elif event == "raw":
                session.raw_session().run(model.raw_op)
                step += 2
            elif event in ("back", "forth"):
                step = step // 2 if event == "back" else step + 7
                session.raw_session().load({"global_step": step})
            elif event == "fail":
                model.faults.append(ValueError("once"))
                with pytest.raises(ValueError, match="once"):
                    session.run(model.fetches["train"])
            elif event == "lose":
                model.faults.append(AbortedError(None, None, "lost"))
                session.run(model.fetches["train"])
                step = 1
                for reference in references:
                    reference.renew()
                    reference.before(0)
                    reference.after("train", step)
            elif event == "tick":
                clock.advance(1)
            else:
                session.add_hook(train.FeedFnHook(dict))

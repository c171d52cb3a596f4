"""A hook gets the state that it made itself, whatever the list of hooks is at the resume."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hookline as hl
from hookline import train
from hookline.monitored.hooked.hook_states import HookStates  # For thousands of sessions, without a checkpoint each.
from hookline.testing import RecordingHook


class Counts(train.SessionRunHook):
    """Counts its firings; two of them are distinguished by their name."""

    def __init__(self, name: Any = None, every: int = 1) -> None:
        self.name, self.trigger, self.count = name, train.every(every), 0

    def on_trigger(self, firing: train.Firing) -> None:
        self.count += 1

    def get_state(self) -> Any:
        return {"name": self.name or "", "count": self.count}

    def set_state(self, state: Any) -> None:
        assert state["name"] == (self.name or ""), "It got the state of another hook."
        self.count = state["count"]


class Watches(Counts):
    """Is identified by a property, from the same names."""

    @property
    def state_key(self) -> str | None:
        return self.name and f"{self.name} watched"


class Duck:
    """Needs no base class."""

    def __init__(self, state_key: str | None = None) -> None:
        self.state_key, self.count = state_key, 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.count += 1

    def get_state(self) -> Any:
        return {"name": self.state_key or "", "count": self.count}

    def set_state(self, state: Any) -> None:
        assert state["name"] == (self.state_key or ""), "It got the state of another hook."
        self.count = state["count"]


class Prints(train.SessionRunHook):
    """Has nothing but the phase of its trigger."""

    def __init__(self, trigger: train.Trigger) -> None:
        self.trigger, self.steps = trigger, []

    def on_trigger(self, firing: train.Firing) -> None:
        self.steps.append(firing.global_step)


def trained(directory: Any, last_step: int, *hooks: Any, **arguments: Any) -> Any:
    with hl.Graph().as_default():
        train_op = train.get_or_create_global_step().assign_add(1)
        with train.MonitoredTrainingSession(
            checkpoint_dir=str(directory),
            hooks=[train.StopAtStepHook(last_step=last_step), *hooks],
            log_step_count_steps=None,
            save_summaries_steps=None,
            **arguments,
        ) as session:
            while not session.should_stop():
                session.run(train_op)
    return hooks


def told(caplog: Any, words: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if words in record.getMessage()]


@pytest.mark.parametrize("names", ["ba", "b", "abc", "cab", "cb", "a", ""])
def test_states_follow_the_names_in_a_changed_list_of_hooks(tmp_path, names):
    trained(tmp_path, 12, Counts("a", 1), Counts("b", 4))
    counts = {hook.name: hook.count for hook in trained(tmp_path, 24, *(Counts(name, 6) for name in names))}
    assert counts == {name: {"a": 12, "b": 3, "c": 0}[name] + 2 for name in names}


def test_hook_is_identified_by_state_key_name_or_class_also_when_wrapped(tmp_path):
    def hooks():
        return Counts(), Counts("a"), Watches(), Watches("a"), Duck(), Duck("a"), Duck("odd/na\n[me]\u00e9 ./..")

    trained(tmp_path, 3, *hooks())
    with hl.Graph().as_default():
        train_op = train.get_or_create_global_step().assign_add(1)
        again = hooks()
        bound = [train.only_for(train_op, hook) for hook in reversed(again)]
        with train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=bound) as session:
            session.run(train_op)
    assert [hook.count for hook in again] == [4] * 7


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ((Counts("a"), Counts("b"), Counts("a", 5)), r"hooks\[0\] and hooks\[2\] .*Counts\[a\].* another name: name="),
        ((Counts(), Counts()), r'hooks\[0\] and hooks\[1\] .*a state_key: hook.state_key = "..."'),
        ((Duck("a"), RecordingHook(), Duck("a"), Duck("a")), r"hooks\[0\] and hooks\[2\] and hooks\[3\]"),
        ((train.StopIfNoImprovement("loss", 2), train.StopIfNoImprovement("loss", 3)), r"eval, loss, min"),
        ((train.NanTensorHook("loss", on_nan="skip"), train.NanTensorHook("loss:0", on_nan="skip")), r"loss:0, skip"),
    ],
)
def test_indistinguishable_hooks_with_a_state_are_refused_at_creation(hooks, message):
    with hl.Graph().as_default():
        train.get_or_create_global_step()
        with pytest.raises(ValueError, match=message):
            train.MonitoredSession(hooks=hooks)
        with pytest.raises(ValueError, match=message):
            train.MonitoredTrainingSession(hooks=hooks)
        with pytest.raises(ValueError, match=message.replace("hooks", "chief_only_hooks")):
            train.MonitoredTrainingSession(chief_only_hooks=hooks)


def test_remedy_of_the_message_works():
    hooks = Counts(), Counts()
    hooks[1].state_key = "other"
    with hl.Graph().as_default():
        train.get_or_create_global_step()
        train.MonitoredSession(hooks=hooks).close()


def test_added_hook_may_not_have_the_identity_of_another(tmp_path):
    with hl.Graph().as_default():
        train_op = train.get_or_create_global_step().assign_add(1)
        with train.MonitoredSession(hooks=[Counts("a")]) as session:
            with pytest.raises(ValueError, match=r"Counts\[a\]"):
                session.add_hook(Counts("a"))
            session.add_hook(Counts("b"))
            session.run(train_op)


def test_state_key_that_is_no_string_is_refused():
    hook = Counts()
    hook.state_key = 3  # type: ignore[assignment]
    with hl.Graph().as_default(), pytest.raises(TypeError, match="must have a string or None as state_key, got 3"):
        train.MonitoredSession(hooks=[hook])


def test_loss_may_be_checked_twice_without_a_state():
    with hl.Graph().as_default():
        train_op = train.get_or_create_global_step().assign_add(1)
        hl.constant(1.0, name="loss")
        hooks = [train.NanTensorHook("loss"), train.NanTensorHook("loss")]
        with train.MonitoredSession(hooks=hooks) as session:
            session.run(train_op)


def test_unclaimed_state_is_kept_and_restored_two_checkpoints_later(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    trained(tmp_path, 3, Counts("a"), Prints(train.every(2)))
    trained(tmp_path, 5)
    (kept,) = told(caplog, "has states of hooks that are not in this session")
    assert kept.getMessage().endswith("Counts[a]. Later checkpoints keep them.")
    (dropped,) = told(caplog, "has phases of triggers whose hooks are not in this session")
    assert "test_identity.Prints. Later checkpoints drop them" in dropped.getMessage()
    trained(tmp_path, 7, Counts("b"))
    caplog.clear()
    (hook,) = trained(tmp_path, 8, Counts("a"))
    assert hook.count == 4
    (taken_up,) = told(caplog, "continues from its state of step")
    assert "The hook Counts continues from its state of step 3; the training is at step 7." in taken_up.getMessage()
    assert not told(caplog, "phases of triggers")
    caplog.clear()
    assert trained(tmp_path, 9, Counts("a"))[0].count == 5
    assert not told(caplog, "takes up")


def test_hook_added_to_an_open_session_restores_its_state(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    trained(tmp_path, 3, Counts("a"))
    with hl.Graph().as_default():
        train_op = train.get_or_create_global_step().assign_add(1)
        with train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)) as session:
            session.run(train_op)
            late = Counts("a")
            session.add_hook(late)
            session.run(train_op)
    assert late.count == 4
    assert told(caplog, "continues from its state of step 3; the training is at step 4")
    assert trained(tmp_path, 6, Counts("a"))[0].count == 5


def test_unclaimed_state_is_logged_once_also_over_recoveries(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    trained(tmp_path, 4, Counts("a"), Counts("b", 2))
    faults = [hl.errors.AbortedError(None, None, "lost")] * 2
    with hl.Graph().as_default():
        lose = hl.host_op(lambda: (_ for _ in ()).throw(faults.pop()) if faults else 0.0)
        with hl.control_dependencies([lose.node()]):
            train_op = train.get_or_create_global_step().assign_add(1)
        hook = Counts("b", 2)
        with train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path),
            hooks=[hook],
            checkpoints=train.CheckpointOptions(recovery=train.RecoveryPolicy(initial_backoff_secs=0)),
        ) as session:
            for _ in range(2):
                session.run(train_op)
    assert (faults, hook.count) == ([], 3)
    assert len(told(caplog, "has states of hooks that are not in this session")) == 1
    assert trained(tmp_path, 6, Counts("a"))[0].count == 4


def test_equal_hooks_with_equal_triggers_restore_phases_by_index(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    first = trained(tmp_path, 5, Prints(train.first_then_every(4)), Prints(train.first_then_every(3)))
    assert [hook.steps for hook in first] == [[1, 5], [1, 4]]
    again = trained(tmp_path, 9, Prints(train.first_then_every(4)), Prints(train.first_then_every(3)))
    assert [hook.steps for hook in again] == [[9], [7]]
    assert not told(caplog, "The triggers of these hooks start over")


@pytest.mark.parametrize("cadences", [(3, 4), (4,), (4, 3, 4), (3, 3)])
def test_equal_hooks_with_ambiguous_phases_start_again_with_one_log_line(tmp_path, caplog, cadences):
    trained(tmp_path, 5, Prints(train.first_then_every(4)), Prints(train.first_then_every(3)))
    caplog.clear()
    again = trained(tmp_path, 9, *(Prints(train.first_then_every(steps)) for steps in cadences))
    assert [hook.steps[0] for hook in again] == [6] * len(cadences)
    (line,) = told(caplog, "The triggers of these hooks start over")
    assert line.levelno == logging.WARNING
    assert line.getMessage().endswith("test_identity.Prints.")


HOOKS = st.lists(
    st.tuples(st.sampled_from([Counts, Watches, Duck]), st.sampled_from([None, "a", "b", "c/0", "a]/trigger", "*"])),
    unique=True,
    max_size=6,
)


@given(st.lists(st.tuples(HOOKS, st.lists(st.sampled_from([2, 3]), max_size=2)), min_size=2, max_size=5))
@settings(deadline=None)
def test_no_hook_gets_the_state_of_another_and_none_is_lost(sessions):
    """Each session has another list of hooks; the count of each hook is its own, over all of them."""
    states: dict[str, Any] = {}
    counted: dict[Any, int] = {}
    for number, (identities, cadences) in enumerate(sessions):
        hooks = [kind(name) for kind, name in identities]
        found = HookStates([*hooks, *(Prints(train.first_then_every(steps)) for steps in cadences)])
        found.restore(states, number)
        for identity, hook in zip(identities, hooks, strict=True):
            assert hook.count == counted.get(identity, 0)
            hook.count += len(hooks)
            counted[identity] = hook.count
        states = found.collect()


def test_state_is_kept_if_the_hook_added_for_it_fails(tmp_path):
    class Fails(Counts):
        def after_create_session(self, session: Any, coord: Any) -> None:
            raise ValueError("not ready")

    Fails.__qualname__ = Counts.__qualname__
    trained(tmp_path, 3, Counts("a"))
    with hl.Graph().as_default():
        train_op = train.get_or_create_global_step().assign_add(1)
        with train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)) as session:
            with pytest.raises(ValueError, match="not ready"):
                session.add_hook(Fails("a"))
            session.run(train_op)
    assert trained(tmp_path, 5, Counts("a"))[0].count == 4


class Odd(train.Trigger):
    """A trigger of one's own, which prints as an address."""

    def next_step(self, after: int) -> int:
        return (after // 10 + 1) * 10


@pytest.mark.parametrize(
    "make",
    [
        lambda: train.every(10),
        lambda: train.when_step(lambda step: step % 10 == 0),
        Odd,
        lambda: Odd() | train.every(10),
    ],
    ids=["every", "a predicate", "of one's own", "an or"],
)
def test_wrapped_hook_due_at_the_save_fires_in_its_next_run_after_the_resume(tmp_path, make):
    hook = Prints(make())
    for steps in (range(10), range(10, 20)):
        with hl.Graph().as_default():
            step = train.get_or_create_global_step()
            generate, discriminate = step.assign_add(1), step.assign_add(1)
            fired, hook = hook.steps, Prints(make())
            with train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path), hooks=[train.only_for(generate, hook)], save_summaries_steps=None
            ) as session:
                for before in steps:  # Even steps come from the discriminator.
                    session.run(discriminate if before % 2 else generate)
    assert (fired, hook.steps) == ([], [11])


def test_variable_called_global_step_that_cannot_be_counted_is_no_problem():
    with hl.Graph().as_default():
        collections = [hl.GraphKeys.GLOBAL_VARIABLES, hl.GraphKeys.GLOBAL_STEP]
        pair = hl.Variable([0.0, 1.0], name="global_step", trainable=False, collections=collections)
        with train.MonitoredSession(hooks=[Duck()]) as session:
            assert list(session.run(pair)) == [0.0, 1.0]

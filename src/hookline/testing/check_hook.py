"""check_hook: checks that a hook, of hookline or a user, keeps the contract of `SessionRunHook`."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline import arguments
from hookline.checkpoint import Saver
from hookline.errors import AbortedError
from hookline.graph import Graph, GraphKeys, Operation, Tensor, Variable, get_or_create_global_step, group, op
from hookline.hooks import SessionRunArgs
from hookline.hooks.only_for import unwrap
from hookline.monitored import ChiefSessionCreator, MonitoredSession, RecoveryPolicy
from hookline.monitored.hooked.callbacks import CALLBACKS, Callback, overridden_callback, replace_callbacks
from hookline.session import Session
from hookline.testing.recording_hook import RecordingHook, to_python

MakeHook = Callable[[], Any]


class _Model(NamedTuple):
    """A model small enough to run hundreds of times."""

    graph: Graph
    fetches: list[Tensor]
    train: Operation
    jump: Operation


def check_hook(make_hook: MakeHook) -> None:
    """Checks that a hook keeps the contract of `SessionRunHook`, in real sessions over a small model.

    - A second `begin` on the same graph adds nothing, and the hook adds nothing once the graph is finalized.
    - The caller's results have the same bits with and without the hook: on runs that train, runs that leave the global
      step unchanged, runs that advance it by several steps, and across a recovery.
    - It works in a session without any run, one that ends with its input, and one that ends with an exception, which
      reaches the caller unchanged.
    - `before_run` and `before_trigger` return None or a `SessionRunArgs`, the other callbacks None.
    - The result of `get_state`, if any, is saved in a checkpoint and restored after a restart.
    - The same hook can be used in one session after another on its graph.
    - It leaves no thread behind that would keep the process alive.

    Args:
        make_hook: Makes a new hook. Called once for each check, before the graph is finalized. The default graph then
            has a float32 vector `"weights:0"`, a scalar `"loss:0"` and a global step.

    Raises:
        AssertionError: The hook breaks one of these rules; the message names the rule.

    Example:
        >>> from hookline.train import NanTensorHook
        >>> check_hook(lambda: NanTensorHook("loss:0"))

    References:
        The documentation of `tf.train.SessionRunHook` states these rules, but nothing checks them there.
    """
    threads = set(threading.enumerate())
    arguments.check_callable("check_hook", "make_hook", make_hook)
    for check in (
        _begin_twice_adds_nothing,
        _callbacks_return_what_they_may,
        _results_are_the_callers_own,
        _recovery_changes_no_result,
        _no_run_at_all,
        _the_end_of_the_input,
        _an_exception_passes_as_it_is,
        _one_session_after_another,
        _a_state_comes_back,
    ):
        try:
            check(make_hook)
        except Exception as exc:
            exc.add_note(f"check_hook: {check.__name__.replace('_', ' ').strip()}.")
            raise
    # Orbax leaves threads of executors behind, which end with the interpreter.
    new = [thread for thread in threading.enumerate() if thread not in threads and not thread.daemon]
    left = [thread for thread in new if not thread.name.startswith(("asyncio_", "ThreadPoolExecutor-"))]
    assert not left, f"The hook left threads that keep the process alive: {left}. Register them with the coordinator."


def _begin_twice_adds_nothing(make_hook: MakeHook) -> None:
    with _model() as model:
        hook = make_hook()
        _call(hook, "begin")
        before = model.graph.version, _collections(model.graph)
        _call(hook, "begin")
        after = model.graph.version, _collections(model.graph)
        assert before == after, f"The second begin on the same graph changed it: {before} became {after}."


def _callbacks_return_what_they_may(make_hook: MakeHook) -> None:
    with _model() as model:
        hook = _with_checked_results(make_hook())
        with _session(hook) as session:
            _run_all(session, [(model.fetches, model.train)] * 4)


def _results_are_the_callers_own(make_hook: MakeHook) -> None:
    def runs(model: _Model) -> list[Any]:
        training, gaining = (model.fetches, model.train), (model.fetches, model.jump)
        return [training] * 3 + [model.fetches] * 2 + [training] + [gaining] * 3 + [training]

    _compare(make_hook, runs)


def _recovery_changes_no_result(make_hook: MakeHook) -> None:
    def runs(model: _Model) -> list[Any]:
        return [(model.fetches, model.train)] * 5

    lose_once = [None, None, AbortedError.from_message("check_hook loses the session")]
    _compare(make_hook, runs, failures={"before_run": lose_once})
    _compare(make_hook, runs, failures={"after_run": lose_once})


def _no_run_at_all(make_hook: MakeHook) -> None:
    with _model() as model:
        _run_session(model, [make_hook()], [])


def _the_end_of_the_input(make_hook: MakeHook) -> None:
    with _model() as model:
        end = RecordingHook(failures={"before_run": [None, StopIteration("check_hook ends the input")]})
        with _session(make_hook(), end) as session:
            _run_all(session, [(model.fetches, model.train)] * 4)
        assert "end" in end.callbacks, "A later hook got no end after the end of the input."


def _an_exception_passes_as_it_is(make_hook: MakeHook) -> None:
    failure = KeyError("check_hook fails")
    try:
        with _model() as model, _session(make_hook()) as session:
            _run_all(session, [(model.fetches, model.train)] * 2)
            raise failure
    except KeyError as exc:
        if exc is not failure:
            raise AssertionError(f"The hook changed the exception that left the session to {exc!r}.") from exc
        return
    raise AssertionError("The hook swallowed the exception that left the session.")


def _one_session_after_another(make_hook: MakeHook) -> None:
    with _model() as model:
        hook = make_hook()
        for _ in range(2):
            with _session(hook) as session:
                _run_all(session, [(model.fetches, model.train)] * 3)


def _a_state_comes_back(make_hook: MakeHook) -> None:
    path, saved = "", None
    with tempfile.TemporaryDirectory() as folder:
        with _model() as model:
            hook = make_hook()
            with _session(hook) as session:
                _run_all(session, [(model.fetches, model.train)] * 3)
                path = Saver().save(session, os.path.join(folder, "check"), 3)
                saved = _call(hook, "get_state")
        if saved is not None:
            with _model():
                hook = make_hook()
                creator = ChiefSessionCreator(checkpoint_filename_with_path=path)
                MonitoredSession(creator, [hook], recovery=None).close()
                found = _call(hook, "get_state")
                same = jax.tree.structure(saved) == jax.tree.structure(found) and all(
                    map(_same, jax.tree.leaves(saved), jax.tree.leaves(found))
                )
                assert same, f"The state was {saved} when it was saved, and {found} after a restart."


def _same(one: Any, other: Any) -> bool:
    # A hook may count seconds, which go by between the two.
    if isinstance(one, float):
        return bool(np.isclose(one, other, rtol=0, atol=60, equal_nan=True))
    return np.array_equal(one, other)


class _FinalizedGraph:
    """A hook before the one under test, which records the version of the complete graph."""

    version: int | None = None

    def after_create_session(self, session: Session, coord: Any) -> None:
        if self.version is None:
            self.version = session.graph.version


def _with_checked_results(hook: Any) -> Any:
    """Makes a hook check the return values of its callbacks; returns it, or a proxy that a session treats like it."""
    inner = unwrap(hook)
    found = {name: overridden_callback(inner, name) for name in CALLBACKS if name != "get_state"}
    checked = {name: _checked(name, callback) for name, callback in found.items() if callback is not None}
    watched = replace_callbacks(inner, checked)
    if inner is hook:
        return watched
    hook.hook = watched
    return hook


def _checked(name: str, callback: Callback) -> Callback:
    def call(*given: Any) -> Any:
        returned = callback(*given)
        asks = name in ("before_run", "before_trigger")
        assert returned is None or (asks and isinstance(returned, SessionRunArgs)), (
            f"{name} must return None{' or a SessionRunArgs' if asks else ''}, got {returned!r}."
        )
        return returned

    return call


def _call(hook: Any, callback: str) -> Any:
    method = getattr(hook, callback, None)
    return None if method is None else method()


def _compare(make_hook: MakeHook, runs: Callable[[_Model], list[Any]], failures: Any = None) -> None:
    """Checks that the caller gets the same results with and without the hook, until the hook stops the training."""
    results = []
    for hooks in ([], [make_hook]):
        with _model() as model:
            mine = [make() for make in hooks]
            # A session exhausts an iterable of failures, so each gets its own.
            failing = RecordingHook(failures={name: list(each) for name, each in (failures or {}).items()})
            results.append(_run_session(model, [*mine, failing], runs(model)))
    without, with_hook = results
    assert with_hook == without[: len(with_hook)], (
        f"The caller's results changed: without the hook {without}, with it {with_hook}."
    )


def _run_session(model: _Model, hooks: list[Any], runs: list[Any]) -> list[Any]:
    """Makes the runs in a session with these hooks; checks that the hooks add nothing to the graph meanwhile."""
    finalized = _FinalizedGraph()
    results: list[Any] = []
    with _session(finalized, *hooks) as session:
        results = _run_all(session, runs)
    assert model.graph.version == finalized.version, "The hook added to the graph after begin."
    return results


def _run_all(session: MonitoredSession, runs: list[Any]) -> list[Any]:
    """Makes the runs until a hook requests a stop; returns the caller's results as Python values."""
    results = []
    for fetches in runs:
        if session.should_stop():
            break
        results.append(to_python(session.run(fetches)))
    return results


def _session(*hooks: Any) -> MonitoredSession:
    return MonitoredSession(hooks=hooks, recovery=RecoveryPolicy(initial_backoff_secs=0))


@contextmanager
def _model() -> Iterator[_Model]:
    graph = Graph()
    with graph.as_default():
        global_step = get_or_create_global_step()
        weights = Variable(lambda: jnp.array([1.0, -2.0, 3.0]), name="weights")
        loss = op(lambda w: (w * w).sum(), name="loss")(weights)
        step_down = weights.assign(op(lambda w: w * 0.9)(weights))
        train = group(step_down, global_step.assign_add(1), name="train")
        jump = group(step_down, global_step.assign_add(5), name="jump")
        yield _Model(graph, [loss, weights, global_step], train, jump)


def _collections(graph: Graph) -> dict[str, int]:
    keys = [key for name, key in vars(GraphKeys).items() if name.isupper()]
    return {key: len(graph.get_collection(key)) for key in keys}

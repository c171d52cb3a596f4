"""The plans that a session has made so far, and what it says once about them."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from hookline.graph.global_step import counted_global_step
from hookline.graph.graph import Graph, Operation, ancestors
from hookline.session.execution import Execution
from hookline.session.feeds import feed_key, resolve_feeds
from hookline.session.fetches import Assemble, fetch_key, flatten
from hookline.session.program import Program
from hookline.session.store import VariableStore

logger = logging.getLogger(__name__)


class Prepared(NamedTuple):
    """An execution, and the functions that put its values into the structures of the caller and of the hooks."""

    execution: Execution
    assemble: Assemble
    assemble_watched: Assemble


def plan_key(fetches: Any, watched: tuple[Any, ...] | None, feed_dict: Mapping[Any, Any] | None) -> Hashable:
    """Returns what two runs have in common that one plan serves."""
    asked = watched and tuple([None if item is None else fetch_key(item) for item in watched])
    return (fetch_key(fetches), asked, feed_key(feed_dict))


class PlanCache:
    """Executions by what was asked for, and the programs that they share.

    Args:
        graph: The graph that is run.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._prepared: dict[Hashable, Prepared] = {}
        self._programs: dict[Any, Program] = {}
        self._told: set[Operation] = set()
        self.get = self._prepared.get

    def make(
        self,
        key: Hashable,
        store: VariableStore,
        fetches: Any,
        watched: tuple[Any, ...] | None,
        feed_dict: Mapping[Any, Any] | None,
    ) -> Prepared:
        """Plans a run and remembers the plan.

        Args:
            key: That of `plan_key`.
            store: Where the variables live.
            fetches: What the caller asks for.
            watched: For each hook what it asks for, or `None`.
            feed_dict: What is fed.
        """
        elements, assemble = flatten(self._graph, fetches)
        # A hook that asks for nothing gets None and not the empty structure that stands for it here.
        asked = [item is not None for item in watched or ()]
        wanted, assemble_all = flatten(self._graph, tuple(() if item is None else item for item in watched or ()))
        fed = resolve_feeds(self._graph, feed_dict or {})
        step = counted_global_step(self._graph)
        execution = Execution(elements, wanted, fed, self._programs, step, store)
        self._warn_of_unknown_step(execution)
        self._warn_of_lost_updates(execution)

        def assemble_watched(values: Any) -> Any:
            results = assemble_all(values[len(elements) :])
            return tuple(value if given else None for value, given in zip(results, asked, strict=True))

        self._prepared[key] = Prepared(execution, assemble, assemble_watched)
        return self._prepared[key]

    def _warn_of_unknown_step(self, execution: Execution) -> None:
        step = counted_global_step(self._graph)
        if execution.step_gain is not None or step is None or step.op in self._told:
            return
        if not any(update.initialises for update in execution.plan.updates[step]):
            self._told.add(step.op)
            logger.warning(
                "The global step %r changes in a way that only the device knows; hooks that look at it wait for it. "
                "Increment it by a constant, with assign_add(1) or minimize(global_step=...).",
                step.op.name,
            )

    def _warn_of_lost_updates(self, execution: Execution) -> None:
        for update in execution.plan.remote:
            if update in self._told or update.initialises or not update.overwrites:
                continue
            if ancestors(update.inputs).isdisjoint(variable.op for variable in update.variables):
                continue
            self._told.add(update)
            logger.warning(
                "%s sets %s to a value computed here from its earlier value: what other workers write meanwhile is "
                "lost. Use assign_add or hookline.update, which work on the value where it lives.",
                update.node_def,
                ", ".join(repr(variable.op.name) for variable in update.variables),
            )

"""Warm starts: initial values of variables from another training's checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import jax

from hookline import arguments, errors, log
from hookline.checkpoint.directory import layout, leaves
from hookline.checkpoint.directory.leaves import Match
from hookline.checkpoint.directory.manifest import Entry, Manifest
from hookline.checkpoint.restoring import reading
from hookline.graph import (
    GraphKeys,
    Operation,
    Tensor,
    Variable,
    get_default_graph,
    global_variables,
    group,
    host_op,
    no_op,
)
from hookline.graph.nodes import spec as specs
from hookline.graph.nodes.spec import UNKNOWN
from hookline.session import Session

_logger = log.get_logger(__name__)

Assignment = dict[Variable, str]
"""The name in the checkpoint of each variable."""

_ADVICE = "Give each variable a name in the checkpoint (list_variables shows the names) with the same shape and dtype."


def init_from_checkpoint(ckpt_dir_or_file: str, assignment_map: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
    """Makes initializers of variables read the initial values from a checkpoint when they run.

    Call it after the variables are created and before `global_variables_initializer`, so before the monitored session
    starts. Other variables are initialised as usual. A training that continues from its own checkpoint does not run
    initializers, so it reads nothing from this checkpoint.

    Args:
        ckpt_dir_or_file: A checkpoint, or a directory for its newest checkpoint.
        assignment_map: From names in the checkpoint to variables of the default graph or their names; or from a prefix
            to a prefix, both ending in a slash. `{"old/": "new/"}` sets each global variable below "new/" to its
            counterpart below "old/", and "/" means all names. To use a name for several variables, give a list of
            pairs. A name takes precedence over a prefix. A name in the checkpoint may be a variable, a leaf
            ("params/dense/kernel"), or a part of a variable ("state/params").

    Raises:
        TypeError: The map contains something other than names and variables.
        ValueError: The checkpoint does not fit; the message names all missing and different values.
        NotFoundError: There is no such checkpoint.
        DataLossError: Its files are broken.

    Example:
        >>> import hookline as hl, tempfile
        >>> from hookline import train
        >>> logdir = tempfile.TemporaryDirectory()
        >>> with hl.Graph().as_default(), hl.Session() as sess:
        ...     sess.run(hl.Variable([1.0, 2.0], name="encoder/w").initializer)
        ...     path = train.Saver().save(sess, logdir.name + "/pretrained")
        >>> with hl.Graph().as_default(), hl.Session() as sess:
        ...     w, head = hl.Variable([0.0, 0.0], name="body/w"), hl.Variable(3.0, name="head/w")
        ...     train.init_from_checkpoint(path, {"encoder/": "body/"})
        ...     sess.run(hl.global_variables_initializer())
        ...     print(sess.run(w), sess.run(head))
        [1. 2.] 3.0
        >>> logdir.cleanup()

    References:
        `tf.compat.v1.train.init_from_checkpoint`. Differences: a tensor's name ("w:0") means its variable; a prefix
        that no variable has is an error; there are no partitioned variables.
    """
    _initialize("init_from_checkpoint", ckpt_dir_or_file, _by_map("init_from_checkpoint", assignment_map))


def warm_start(
    ckpt_to_initialize_from: str,
    vars_to_warm_start: str | Sequence[str] | Sequence[Variable] | None = ".*",
    var_name_to_vocab_info: None = None,
    var_name_to_prev_var_name: Mapping[str, str] | None = None,
) -> None:
    """Makes initializers of variables read values of the same names from a checkpoint, as in `init_from_checkpoint`.

    Args:
        ckpt_to_initialize_from: A checkpoint, or a directory for its newest checkpoint.
        vars_to_warm_start: A regular expression, matched from the beginning of the names of trainable variables; or a
            list of them, for all global variables; or a list of variables. None chooses none.
        var_name_to_vocab_info: Must be None: hookline does not support vocabularies. To copy rows of an embedding in
            another order, make them the initial value: `Variable(load_variable(path, "embedding")[rows])`.
        var_name_to_prev_var_name: For variables with another name in the checkpoint: from the name here to that name.

    Raises:
        TypeError: An argument contains something other than names and variables.
        ValueError: Vocabularies are given, `var_name_to_prev_var_name` names a variable that is not chosen, or the
            checkpoint does not fit, as in `init_from_checkpoint`.
        NotFoundError: There is no such checkpoint.

    Example:
        >>> import hookline as hl, tempfile
        >>> weight = hl.Variable(3.0, name="weight")
        >>> with hl.Session() as sess, tempfile.TemporaryDirectory() as logdir:
        ...     sess.run(weight.initializer)
        ...     path = hl.train.Saver().save(sess, logdir + "/pretrained")
        ...     with hl.Graph().as_default(), hl.Session() as other:
        ...         fresh = hl.Variable(0.0, name="weight")
        ...         warm_start(path)
        ...         print(other.run(fresh.initializer), other.run(fresh))
        None 3.0

    References:
        `tf.compat.v1.train.warm_start`.
    """
    if var_name_to_vocab_info:
        raise ValueError(
            "warm_start: hookline does not support vocabularies (var_name_to_vocab_info). Make the wanted rows the "
            "initial value of the variable: Variable(load_variable(path, name)[rows])."
        )
    arguments.check_mapping("warm_start", "var_name_to_prev_var_name", var_name_to_prev_var_name, optional=True)
    assignment = _by_pattern("warm_start", vars_to_warm_start, var_name_to_prev_var_name or {})
    if assignment:
        _initialize("warm_start", ckpt_to_initialize_from, assignment)


def assign_from_checkpoint(
    model_path: str,
    var_list: Iterable[Variable] | Mapping[str, Variable],
    ignore_missing_vars: bool = False,
) -> tuple[Operation, dict[Any, Any]]:
    """Returns an operation that sets variables to values from a checkpoint, and its feeds.

    Args:
        model_path: A checkpoint, or a directory for its newest checkpoint.
        var_list: Variables with the same names in the checkpoint, or a dict from the names there, as in
            `init_from_checkpoint`.
        ignore_missing_vars: Whether to skip, with a warning, variables that the checkpoint does not have.

    Returns:
        The operation, which reads the checkpoint when it runs, and a feed for it, which is empty. `Scaffold` takes them
        as `init_op` and `init_feed_dict`. Without variables the operation does nothing.

    Raises:
        TypeError: An item of `var_list` is not a variable.
        ValueError: The checkpoint does not fit; the message names all missing and different values.
        NotFoundError: There is no such checkpoint.

    Example:
        >>> import hookline as hl, tempfile
        >>> weight = hl.Variable(3.0, name="weight")
        >>> with hl.Session() as sess, tempfile.TemporaryDirectory() as logdir:
        ...     sess.run(weight.initializer)
        ...     path = hl.train.Saver().save(sess, logdir + "/pretrained")
        ...     weight.load(0.0, sess)
        ...     operation, feeds = assign_from_checkpoint(path, [weight])
        ...     print(sess.run(operation, feeds), sess.run(weight))
        None 3.0

    References:
        `tf.contrib.framework.assign_from_checkpoint`, which reads the values at once and feeds them.
    """
    who = "assign_from_checkpoint"
    path = reading.resolve_checkpoint(model_path, who, "model_path")
    assignment = _skip_missing(path, _by_name(who, var_list or ()), ignore_missing_vars)
    if not assignment:
        return no_op(name=who), {}
    values = _deferred_read(who, path, assignment)
    return group(*(variable.assign(values[variable.op.name]) for variable in assignment), name=who), {}


def assign_from_checkpoint_fn(
    model_path: str,
    var_list: Iterable[Variable] | Mapping[str, Variable],
    ignore_missing_vars: bool = False,
    reshape_variables: bool = False,
) -> Callable[[Any], None] | None:
    """Returns a function of a session that sets variables to values from a checkpoint.

    It adds nothing to the graph. As the `init_fn` of a `Scaffold` it is called when a training starts, not when one
    continues.

    Args:
        model_path: A checkpoint, or a directory for its newest checkpoint.
        var_list: As in `assign_from_checkpoint`.
        ignore_missing_vars: Whether to skip, with a warning, variables that the checkpoint does not have.
        reshape_variables: Whether to accept a value of another shape that has as many elements.

    Returns:
        The function; None if the checkpoint has none of the variables.

    Raises:
        TypeError: An item of `var_list` is not a variable.
        ValueError: `var_list` is empty, or does not fit; the message names all missing and different values.
        NotFoundError: There is no such checkpoint.

    Example:
        >>> import hookline as hl, tempfile
        >>> from hookline import train
        >>> logdir = tempfile.TemporaryDirectory()
        >>> with hl.Graph().as_default(), hl.Session() as sess:
        ...     sess.run(hl.Variable([1.0, 2.0], name="encoder/w").initializer)
        ...     path = train.Saver().save(sess, logdir.name + "/pretrained")
        >>> with hl.Graph().as_default():
        ...     w = hl.Variable([0.0, 0.0], name="w")
        ...     take = train.assign_from_checkpoint_fn(path, {"encoder/w": w})
        ...     scaffold = train.Scaffold(init_fn=lambda scaffold, session: take(session))
        ...     with train.MonitoredTrainingSession(scaffold=scaffold) as sess:
        ...         print(sess.run(w))
        [1. 2.]
        >>> logdir.cleanup()

    References:
        `tf.contrib.framework.assign_from_checkpoint_fn`.
    """
    who = "assign_from_checkpoint_fn"
    assignment = _by_name(who, var_list or ())
    if not assignment:
        raise ValueError(f"{who} requires a variable or more in var_list, got none.")
    path = reading.resolve_checkpoint(model_path, who, "model_path")
    assignment = _skip_missing(path, assignment, ignore_missing_vars)
    if not assignment:
        _logger.warning("%s: '%s' has none of the variables; there is nothing to assign.", who, path)
        return None
    _fit(who, path, layout.read_manifest(path)[1], assignment, reshape_variables)

    def assign(session: Session | Any) -> None:
        raw_session = getattr(session, "raw_session", None)
        values = _read(who, path, assignment, reshape_variables)
        (session if raw_session is None else raw_session()).backend.load(values, owned=True)

    return assign


def _initialize(who: str, ckpt_dir_or_file: str, assignment: Assignment) -> None:
    path = reading.resolve_checkpoint(ckpt_dir_or_file, who)
    values = _deferred_read(who, path, assignment)
    old = {variable.initializer for variable in assignment}
    for variable in assignment:
        variable.initialize_from(values[variable.op.name])
    made = [node.name for node in values.graph.get_operations() if not old.isdisjoint(node.control_inputs)]
    if made:
        _logger.warning(
            "%s comes too late for %s, created before it, which still uses the earlier initial values. Create "
            "initializers after the call.",
            who,
            ", ".join(repr(name) for name in made),
        )


def _deferred_read(who: str, path: str, assignment: Assignment) -> Tensor:
    """Returns a tensor of the values by variable name; each run that needs one of them reads all."""
    _fit(who, path, layout.read_manifest(path)[1], assignment)
    promised = {variable.op.name: variable.spec for variable in assignment}
    known = not any(spec is UNKNOWN for spec in promised.values()) and not any(
        None in (specs.open_shape(leaf) or ()) for leaf in jax.tree.leaves(promised)
    )
    return host_op(lambda: _read(who, path, assignment), name=who, spec=promised if known else None).node()


def _read(who: str, path: str, assignment: Assignment, reshape: bool = False) -> dict[str, Any]:
    shardings = {_label(name, variable): variable.given_shardings for variable, name in assignment.items()}
    read = reading.read(path, lambda manifest: _fit(who, path, manifest, assignment, reshape), shardings=shardings)
    values = {variable.op.name: read[_label(name, variable)] for variable, name in assignment.items()}
    if reshape:
        values = {v.op.name: leaves.reshape_like(v.spec, values[v.op.name]) for v in assignment}
    return values


def _fit(who: str, path: str, manifest: Manifest, assignment: Assignment, reshape: bool = False) -> dict[str, Match]:
    """Matches an assignment with the contents of a checkpoint; raises `ValueError` if a value is missing or differs."""
    # The entries get labels with both names, for the errors.
    entries = {name: entry for name, entry in manifest.variables.items() if name not in assignment.values()}
    for variable, name in assignment.items():
        if (entry := _entry(manifest, name)) is not None:
            entries[_label(name, variable)] = entry
    wanted = {_label(name, variable): variable.spec for variable, name in assignment.items()}
    try:
        return leaves.match_variables(path, entries, wanted, reshape=reshape, advice=_ADVICE)
    except (errors.NotFoundError, errors.InvalidArgumentError) as error:
        raise ValueError(f"{who}: {error.message}") from None


def _label(name: str, variable: Variable) -> str:
    return name if name == variable.op.name else f"{name} (for {variable.op.name})"


def _entry(manifest: Manifest, name: str) -> Entry | None:
    """Returns the entry for a name in a checkpoint, perhaps a part of a variable; None if there is none."""
    if name in manifest.variables:
        return manifest.variables[name]
    below = [
        dataclasses.replace(leaf, path=leaf.name[len(name) + 1 :])
        for leaf in manifest.leaves.values()
        if f"{leaf.name}/".startswith(f"{name}/")
    ]
    return Entry(tuple(below)) if below else None


def _skip_missing(path: str, assignment: Assignment, ignore_missing: bool) -> Assignment:
    """Returns an assignment; if missing variables may be skipped, without those that the checkpoint lacks."""
    if not ignore_missing:
        return assignment
    manifest = layout.read_manifest(path)[1]
    missing = [variable for variable, name in assignment.items() if _entry(manifest, name) is None]
    for variable in missing:
        _logger.warning("Variable '%s' is not in checkpoint '%s'.", assignment[variable], path)
    return {variable: name for variable, name in assignment.items() if variable not in missing}


# Assignments from the arguments of public functions: maps of names and prefixes, lists, patterns.


def _by_map(who: str, assignment_map: Any) -> Assignment:
    """Returns the assignment for an `assignment_map` of `init_from_checkpoint` in the default graph."""
    pairs = assignment_map.items() if isinstance(assignment_map, Mapping) else assignment_map
    if isinstance(pairs, str) or not isinstance(pairs, Iterable):
        raise TypeError(f"{who} requires a dict from names to variables, or a list of pairs, got {assignment_map!r}.")
    prefixes: Assignment = {}
    names: Assignment = {}
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"{who} requires pairs of a name in the checkpoint and a variable, got {pair!r}.")
        name, target = pair
        if name.endswith("/") or (isinstance(target, str) and target.endswith("/")):
            prefixes |= _by_prefix(who, name, target)
        else:
            names[_variable(who, target)] = name.removesuffix(":0")
    return prefixes | names


def _by_name(who: str, var_list: Any) -> Assignment:
    """Returns the assignment for a list of variables, or a dict from names to variables."""
    if isinstance(var_list, Mapping):
        return {_checked(who, variable): name.removesuffix(":0") for name, variable in var_list.items()}
    variables = arguments.check_list(who, "var_list", var_list)
    return {_checked(who, variable): variable.op.name for variable in variables}


def _by_pattern(
    who: str, chosen: str | Sequence[str] | Sequence[Variable] | None, earlier_names: Mapping[str, str]
) -> Assignment:
    """Returns the assignment for the arguments of `warm_start` in the default graph."""
    graph = get_default_graph()
    if chosen is None:
        found = []
    elif isinstance(chosen, str):
        found = graph.get_collection(GraphKeys.TRAINABLE_VARIABLES, chosen)
    elif all(isinstance(item, str) for item in arguments.check_list(who, "vars_to_warm_start", chosen)):
        patterns = cast("Sequence[str]", chosen)
        found = [v for pattern in patterns for v in graph.get_collection(GraphKeys.GLOBAL_VARIABLES, pattern)]
    else:
        found = [_checked(who, item) for item in chosen]
    names = {variable.op.name for variable in found}
    earlier = {name.removesuffix(":0"): before.removesuffix(":0") for name, before in earlier_names.items()}
    if unused := sorted(earlier.keys() - names):
        raise ValueError(
            f"{who}: var_name_to_prev_var_name names variables that are not chosen: {', '.join(unused)}. Chosen "
            f"are: {', '.join(sorted(names)) or 'none'}."
        )
    return {variable: earlier.get(variable.op.name, variable.op.name) for variable in found}


def _by_prefix(who: str, prefix: str, target: Any) -> Assignment:
    if not (prefix.endswith("/") and isinstance(target, str) and target.endswith("/")):
        raise ValueError(
            f"{who} requires for a prefix, which ends in a slash, another prefix, and for a name a variable or its "
            f"name; got {prefix!r} for {getattr(target, 'name', target)!r}."
        )
    theirs, ours = (text.removeprefix("/") if text == "/" else text for text in (prefix, target))
    found = [v for v in global_variables() if v.op.name.startswith(ours) and not v.per_worker]
    if not found:
        raise ValueError(f"{who}: the graph has no global variable whose name begins with {target!r}.")
    return {variable: theirs + variable.op.name[len(ours) :] for variable in found}


def _variable(who: str, target: Any) -> Variable:
    if isinstance(target, str):
        try:
            target = get_default_graph().get_operation_by_name(target.removesuffix(":0")).output
        except KeyError as error:
            raise ValueError(f"{who}: {error.args[0]}") from None
    return _checked(who, target)


def _checked(who: str, variable: Any) -> Variable:
    if not isinstance(variable, Variable):
        hint = " There are no partitioned variables: give the variable itself." if isinstance(variable, list) else ""
        raise TypeError(f"{who} requires variables, got {variable!r}.{hint}")
    if variable.graph is not get_default_graph():
        raise ValueError(f"{who}: variable {variable.op.name!r} belongs to another graph than the default graph.")
    return variable

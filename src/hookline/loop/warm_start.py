"""WarmStart: begins a new training with weights of another one."""

from __future__ import annotations

import contextlib
import dataclasses
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hookline import arguments, log
from hookline.checkpoint import load_variable
from hookline.checkpoint.directory import collective, layout
from hookline.checkpoint.directory import leaves as fitting
from hookline.checkpoint.directory.manifest import Leaf, Manifest
from hookline.checkpoint.restoring import foreign, reading
from hookline.checkpoint.restoring.foreign import Weights
from hookline.coordination import process_group
from hookline.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from hookline.graph import Variable, get_global_step
from hookline.log import escape_line
from hookline.loop.load import AVERAGE, STATE, check_step, find_checkpoint, find_root, leaves_below
from hookline.loop.step.optimizer_state import optimizer_leaf_mask
from hookline.paths import flatten_with_paths
from hookline.session import Session
from hookline.signals import interrupts

_logger = log.get_logger(__name__)

_WHO = "WarmStart"


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """Configures a warm start of a new training from the weights of another: `loop.run(logdir, warm_start=...)`.

    The weights come from a checkpoint of hookline, or from another library: a safetensors file (package
    `safetensors`), an npz file, a Flax msgpack file (`flax.serialization.to_bytes`), or a directory of Orbax, also of
    its `CheckpointManager`. The format is recognised by the contents.

    Arrays are restored by name, if shape and dtype match. All others keep the initial values of the loop's state. The
    log names the arrays that are restored, initialized, and left in the checkpoint; a warning names those of another
    shape or dtype. A training that resumes from its own checkpoint ignores the warm start.

    By default the optimizer state is initialized, and so are metrics in the state, its step counter and the global
    step. `opt_state=True` restores these too, for a model that was changed in the middle of its training. The moments
    of new arrays in Adam then begin at zero while its count does not, so the first updates of these arrays are larger.
    Moving averages begin with the state after the warm start. Positions in the data and states of hooks are not
    restored.

    Args:
        path: A checkpoint, the directory of a training, or a file.
        rename: A dict from names in the checkpoint, of arrays or of parts, to names in the state: `{"body":
            "encoder"}`. "/" is the whole tree, and None as a name in the state leaves the arrays out. If two names
            match an array, the longer one applies; all other arrays keep their names. Or a function from the name of an
            array to its name in the state, or to None. Names are those of `train.list_variables`, without the prefix
            `state/`. In safetensors and npz files "." separates keys like "/".
        opt_state: Whether to restore the optimizer state, metrics in the state, its step counter and the global step as
            well.
        step: The checkpoint of a directory: "latest", "best" or a global step.
        cast: Whether to convert floating point arrays of another dtype to that of the state.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: `step` is unknown. From the session: the checkpoint or the state has nothing with a name in
            `rename`; two arrays are renamed to the same name (a renamed array replaces one that has the name already);
            or no array can be restored. The message names the arrays.
        NotFoundError: From the session: there is no such checkpoint.
        InvalidArgumentError: From the session: the file has another format.
        DataLossError: From the session: the file is broken.

    Example:
        >>> import hookline as hl, jax.numpy as jnp, numpy as np, tempfile
        >>> def train_step(state, batch):
        ...     return jax.tree.map(lambda leaf: leaf + 1, state), {}
        >>> def loop(state):
        ...     return hl.train.Loop(train_step, state, hl.data.from_arrays(np.ones(4), batch_size=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(folder + "/a.npz", **{"body.w": np.full(2, 4.0, "float32"), "head": np.zeros(3, "float32")})
        ...     state = {"encoder": {"w": jnp.zeros(2)}, "head": jnp.zeros(5)}
        ...     warm = hl.train.WarmStart(folder + "/a.npz", rename={"body": "encoder"})
        ...     print(loop(state).run(folder + "/b", last_step=1, warm_start=warm))
        {'encoder': {'w': Array([5., 5.], dtype=float32)}, 'head': Array([1., 1., 1., 1., 1.], dtype=float32)}

    References:
        `tf.estimator.WarmStartSettings`. Differences: names instead of regular expressions; all matching arrays are
        restored.
    """

    path: str
    rename: Mapping[str, str | None] | Callable[[str], str | None] = dataclasses.field(default_factory=dict)
    opt_state: bool = False
    step: int | str = "latest"
    cast: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", arguments.check_path(_WHO, "path", self.path))
        if not callable(self.rename):
            arguments.check_mapping(_WHO, "rename", self.rename)
            for ours, theirs in self.rename.items():
                if not isinstance(ours, str) or not isinstance(theirs, str | None):
                    raise TypeError(
                        f"{_WHO} requires names in the state, or None, for names in the checkpoint as `rename`, got "
                        f"{theirs!r} for {ours!r}."
                    )
        for name in ("opt_state", "cast"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{_WHO} requires True or False as {name}, got {getattr(self, name)!r}.")
        check_step(_WHO, self.step)


def as_warm_start(given: Any) -> WarmStart | None:
    """Returns the settings for the argument `warm_start` of a loop."""
    if given is None or isinstance(given, WarmStart):
        return given
    return WarmStart(arguments.check_path("Loop", "warm_start", given))


def apply(warm: WarmStart, session: Session, state: Variable, training_leaves: Collection[str]) -> None:
    """Restores the matching arrays of the checkpoint into the state of a new session.

    Args:
        warm: The settings.
        session: The session.
        state: The variable.
        training_leaves: As in `check_match`.

    Raises:
        ValueError, OpError: As in `WarmStart`.
    """
    source = _find_agreed_source(warm)
    found = _match_leaves(warm, source, state.spec, training_leaves)
    pairs = flatten_with_paths(state.spec)[0]
    shardings = dict(zip((name for name, _ in pairs), state.shardings or [None] * len(pairs), strict=True))
    specs = {name: leaf for name, leaf in pairs if name in found.matched}
    there = source.leaves
    if isinstance(source, Weights):
        wanted = {
            leaf.name: jax.ShapeDtypeStruct(leaf.shape, specs[name].dtype, sharding=shardings[name])
            for name, leaf in found.matched.items()
        }
        values = source.read(wanted)
        read = {name: jnp.asarray(values[leaf.name]) for name, leaf in found.matched.items()}
    else:
        read = reading.read(
            source.path,
            lambda manifest: {
                name: fitting.Match((leaf,), jax.tree.structure(0))
                for name, leaf in _match_leaves(
                    warm, _Checkpoint(source.path, manifest), state.spec, training_leaves
                ).matched.items()
            },
            shardings={name: [shardings[name]] for name in found.matched},
        )
        read = {
            name: array if array.dtype == specs[name].dtype else array.astype(specs[name].dtype)
            for name, array in read.items()
        }
        step = get_global_step(session.graph)
        if warm.opt_state and step is not None and step.op.name in source.manifest.variables:
            session.load({step.op.name: load_variable(source.path, step.op.name)})
        if AVERAGE in source.manifest.variables:  # Averages are not restored: they begin with the initial state.
            averages = source.manifest.variables[AVERAGE].leaves
            there = {**there, **{_join_names(AVERAGE, leaf.path): leaf for leaf in averages}}
    set_leaves(session, state, read)
    session.origin = f"begun with values of {source.path}"
    _report(source.path, found, there, [name for name, _ in pairs])


def check_match(warm: WarmStart, state: Variable, training_leaves: Collection[str]) -> tuple[str, bool]:
    """Checks that arrays of the checkpoint match the state; returns its path, and whether its step is restored, too.

    Args:
        warm: The settings.
        state: The variable.
        training_leaves: The paths of leaves that belong to a training like the optimizer state: the step counter, and
            metrics that accumulate.

    Raises:
        ValueError, OpError: As in `WarmStart`.
    """
    source = _find_source(warm)
    _match_leaves(warm, source, state.spec, training_leaves)
    return source.path, warm.opt_state and isinstance(source, _Checkpoint)


def set_leaves(session: Session, variable: Variable, new: Mapping[str, Any]) -> None:
    """Sets some leaves of a variable, by path, to arrays that the caller must not use again."""
    pairs, structure = flatten_with_paths(session.backend.borrow_value(variable))
    leaves = [new.get(path, leaf) for path, leaf in pairs]
    session.backend.load({variable.op.name: structure.unflatten(leaves)}, owned=True)


class _Checkpoint(NamedTuple):
    """A checkpoint of hookline."""

    path: str
    manifest: Manifest

    @property
    def leaves(self) -> dict[str, Leaf]:
        return leaves_below(self.manifest, find_root(self.manifest))


def _find_source(warm: WarmStart) -> _Checkpoint | Weights:
    if (weights := foreign.find(_WHO, warm.path, warm.step)) is not None:
        return weights
    path = find_checkpoint(_WHO, warm.path, warm.step)
    return _Checkpoint(path, layout.read_manifest(path)[1])


def _find_agreed_source(warm: WarmStart) -> _Checkpoint | Weights:
    """Returns the source, after a check that it is the same in all SPMD processes; an error of one is raised in all."""
    found: list[_Checkpoint | Weights] = []

    def find() -> int:
        found.append(_find_source(warm))
        return zlib.crc32(repr(sorted(found[0].leaves.items())).encode("utf-8", "surrogatepass"))

    seen = collective.current().run_on_all(find)
    if len(set(seen)) > 1:
        other = next(process for process, digest in enumerate(seen) if digest != seen[0])
        raise FailedPreconditionError.from_message(
            f"{_WHO}: '{warm.path}' has other arrays in process {other} than in process 0. Give all processes the same "
            f"file.",
        )
    return found[0]


class _Matches(NamedTuple):
    """The leaves of a state by path.

    Attributes:
        matched: The leaves to restore.
        mismatched: The leaves with another shape or dtype in the checkpoint, each with a description.
        skipped: The leaves of the optimizer state, metrics and step counters, which are not restored by default.
        unmatched: The leaves that the checkpoint does not have.
    """

    matched: dict[str, Leaf]
    mismatched: dict[str, str]
    skipped: list[str]
    unmatched: list[str]


def _match_leaves(
    warm: WarmStart, source: _Checkpoint | Weights, spec: Any, training_leaves: Collection[str]
) -> _Matches:
    pairs = flatten_with_paths(spec)[0]
    there = source.leaves
    renamed = _apply_rename(warm, source, [name for name, _ in pairs])
    found = _Matches({}, {}, [], [])
    for (name, leaf), is_slot in zip(pairs, optimizer_leaf_mask(spec), strict=True):
        saved = renamed.get(name)
        if not warm.opt_state and (is_slot or name in training_leaves):
            found.skipped.append(name)
        elif saved is None:
            found.unmatched.append(name)
        elif saved.shape == leaf.shape and (saved.dtype == str(leaf.dtype) or (warm.cast and _are_floats(saved, leaf))):
            found.matched[name] = saved
        else:
            advice = ", and cast=True converts it" if saved.shape == leaf.shape and _are_floats(saved, leaf) else ""
            found.mismatched[name] = (
                f"{name} is {_describe_leaf(saved)} in the checkpoint and {_describe_leaf(leaf)} in the state{advice}"
            )
    if not found.matched:
        lines = [*found.mismatched.values(), *(f"{name} is not in the checkpoint" for name in found.unmatched)]
        lines += [
            f"{name} is part of the optimizer state, a metric or a step counter, which opt_state=True restores"
            for name in found.skipped
        ]
        raise ValueError(
            f"{_WHO}: nothing of checkpoint '{source.path}' fits the state.\n  "
            + "\n  ".join(lines)
            + f"\nThe checkpoint has: {_list_names(there)}. Map other names with `rename`: {{'/': 'params'}} puts all "
            f"of them below 'params', and {{'params': '/'}} restores that part as the whole state."
        )
    return found


def _apply_rename(warm: WarmStart, source: _Checkpoint | Weights, targets: Collection[str]) -> dict[str, Leaf]:
    """Returns the arrays of the checkpoint by their names in the state."""
    there = source.leaves
    if callable(warm.rename):
        pairs = [(interrupts.call_user_function(warm.rename, name), name) for name in there]
        for new, name in pairs:
            if not isinstance(new, str | None):
                raise TypeError(f"{_WHO} requires a function that returns names as rename, got {new!r} for {name!r}.")
        given, kept = [(new, name) for new, name in pairs if new is not None], []
    else:
        rules = _rename_rules(warm.rename, source, targets)
        given, kept = [], []
        for name in there:
            rule = max((rule for rule in rules if _is_prefix(rule, name)), key=len, default=None)
            start = "" if rule is None else rules[rule]
            if start is not None:
                new = _join_names(start, name[len(rule or "") :].strip("/"))
                (kept if new == name else given).append((new, name))
    found: dict[str, str] = {}
    for new, name in given:
        if (other := found.setdefault(new.strip("/"), name)) != name:
            raise ValueError(f"{_WHO}: rename maps {other!r} and {name!r} of '{source.path}' to one name, {new!r}.")
    return {new: there[name] for new, name in {**dict(kept), **found}.items()}


def _rename_rules(
    rename: Mapping[str, str | None], source: _Checkpoint | Weights, targets: Collection[str]
) -> dict[str, str | None]:
    """Returns the dict given as `rename`, with the names of the checkpoint as hookline writes them."""
    rules: dict[str, str | None] = {}
    for name, new in rename.items():
        # A name in a flat file may be given as it is in the file, with ".".
        rule = next((rule for rule in (name, foreign.path_of(name)) if _is_in(source.leaves, rule.strip("/"))), name)
        rules[rule.strip("/")] = new = None if new is None else new.strip("/")
        for text, known, where in ((rule, source.leaves, f"checkpoint '{source.path}'"), (new, targets, "the state")):
            if text is not None and not _is_in(known, text.strip("/")):
                raise ValueError(
                    f"{_WHO}: rename has {text!r}, and {where} has nothing of that name. It has: {_list_names(known)}."
                )
    return rules


def _is_in(names: Collection[str], part: str) -> bool:
    return any(_is_prefix(part, name) for name in names)


def _are_floats(saved: Leaf, leaf: Any) -> bool:
    """Returns whether both are floating point arrays; False for dtypes of other libraries that JAX lacks."""
    try:
        return all(jnp.issubdtype(jnp.dtype(str(each.dtype)), jnp.floating) for each in (saved, leaf))
    except TypeError:
        return False


def _report(path: str, found: _Matches, there: Mapping[str, Leaf], targets: Collection[str]) -> None:
    if not process_group.is_primary():
        return
    taken = {leaf.name for leaf in found.matched.values()}
    left = [name for name, leaf in there.items() if leaf.name not in taken]
    _logger.info(
        "Warm start from '%s'. Restored: %s. Initialized: %s. Left in the checkpoint: %s.",
        path,
        summarize_names(found.matched, targets),
        "; ".join(
            text
            for text in (
                summarize_names([*found.unmatched, *found.mismatched], targets),
                f"{summarize_names(found.skipped, targets)} (opt_state=True restores these)" if found.skipped else "",
            )
            if text
        )
        or "nothing",
        summarize_names(left, there) or "nothing",
    )
    if found.mismatched:
        _logger.warning(
            "Warm start from '%s': %s. So these are initialized.", path, "; ".join(found.mismatched.values())
        )


def summarize_names(chosen: Iterable[str], among: Collection[str]) -> str:
    """Returns names as a string, with one name for a part if all its arrays are chosen.

    Example:
        >>> summarize_names(["a/b", "a/c", "d/e"], ["a/b", "a/c", "d/e", "d/f"])
        'a (2 arrays), d/e'
    """
    wanted = set(chosen)

    def parts(prefix: str, names: list[str]) -> Iterator[str]:
        inside = [name for name in names if name in wanted]
        if prefix and len(inside) == len(names):
            yield names[0] if len(names) == 1 else f"{prefix} ({len(names)} arrays)"
        elif inside:
            below: dict[str, list[str]] = {}
            for name in names:
                below.setdefault(_join_names(prefix, name[len(prefix) :].strip("/").partition("/")[0]), []).append(name)
            for longer, some in below.items():
                yield from parts(longer, some)

    return ", ".join(parts("", list(among)))


@contextlib.contextmanager
def loop_restore_advice(logdir: str | None) -> Iterator[None]:
    """Adds advice for loops to the error of a checkpoint that does not fit."""
    try:
        yield
    except (NotFoundError, InvalidArgumentError) as error:
        if not error.message.endswith(fitting.ADVICE):
            raise
        text = error.message.removesuffix(fitting.ADVICE)
        others = [line for line in text.splitlines()[1:] if not line.startswith(f"{fitting.MISSING}{AVERAGE}")]
        if all(
            line.startswith(fitting.UNEXPECTED) and not line.startswith(fitting.UNEXPECTED + STATE) for line in others
        ):
            advice = (
                f"To add averages, continue in another directory: "
                f"run(another, warm_start=train.WarmStart({logdir!r}, opt_state=True))."
            )
        else:
            advice = (
                f"Begin a new training with the arrays that fit, in another directory: "
                f"run(another, warm_start={logdir!r}); see train.WarmStart."
            )
        raise type(error)(None, None, text + advice) from None


def _is_prefix(part: str, name: str) -> bool:
    return not part or name == part or name.startswith(f"{part}/")


def _join_names(part: str, rest: str) -> str:
    return f"{part}/{rest}" if part and rest else part or rest


def _describe_leaf(leaf: Any) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _list_names(names: Iterable[str]) -> str:
    return escape_line(", ".join(names)) or "nothing"

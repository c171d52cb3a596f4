"""WarmStart: begins a new training with values of another one."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from hookline import arguments, log
from hookline.checkpoint import fitting, layout, load_variable, reading
from hookline.checkpoint import leaves as paths
from hookline.checkpoint.manifest import Leaf, Manifest
from hookline.coordination import peers
from hookline.errors import InvalidArgumentError, NotFoundError
from hookline.graph import Variable, get_global_step
from hookline.loop.checkpoint_lookup import AVERAGE, STATE, below, check_step, checkpoint_of, root_of
from hookline.loop.optimizer_state import of_optimizer
from hookline.session import Session

_logger = log.of(__name__)

_WHO = "WarmStart"


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """Configures a warm start of a new training from a checkpoint of another: `loop.run(logdir, warm_start=...)`.

    Arrays are restored by name, if shape and dtype match; nothing is cast. All others keep the initial values of the
    loop's state. The log names the arrays that are restored, initialized, and left in the checkpoint; a warning names
    those of another shape or dtype. A training that resumes from its own checkpoint ignores the warm start.

    By default the optimizer is initialized, and so are metrics in the state, its step counter and the global step.
    `slots=True` restores these too, for a model that was changed in the middle of its training. The slots of new arrays
    are then zero while Adam's count is not, so that their first steps are larger. Moving averages begin with the
    state after the warm start. Positions in the data and states of hooks are not restored.

    Args:
        path: A checkpoint, or the directory of a training.
        names: A dict from names in the checkpoint to names in the state: of arrays or of parts, as
            `train.list_variables` shows them, without the prefix `state/`. "/" means all. If two cover an array, the
            longer one applies. By default each array has its own name, `{"/": "/"}`.
        slots: Whether to restore the slots and counts of the optimizer, metrics in the state, and the steps as well.
        step: The checkpoint of a directory: "latest", "best" or a global step.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: `step` is unknown. From the session: the checkpoint or the state has nothing of a name in `names`;
            or no array can be restored. The message names the arrays.
        NotFoundError: From the session: there is no such checkpoint.

    Example:
        >>> import hookline as hl, jax.numpy as jnp, numpy as np, tempfile
        >>> def train_step(state, batch):
        ...     return jax.tree.map(lambda leaf: leaf + 1, state), {}
        >>> def loop(state):
        ...     return hl.train.Loop(train_step, state, hl.data.arrays(np.ones(4), batch_size=1))
        >>> with tempfile.TemporaryDirectory() as logs:
        ...     _ = loop({"body": jnp.zeros(2), "head": jnp.zeros(3)}).run(logs + "/a", last_step=4)
        ...     state = {"encoder": jnp.zeros(2), "head": jnp.zeros(5)}
        ...     warm = hl.train.WarmStart(logs + "/a", {"body": "encoder"})
        ...     print(loop(state).run(logs + "/b", last_step=1, warm_start=warm))
        {'encoder': Array([5., 5.], dtype=float32), 'head': Array([1., 1., 1., 1., 1.], dtype=float32)}

    References:
        `tf.estimator.WarmStartSettings`. Differences: names, not regular expressions; it restores all that match.
    """

    path: str
    names: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"/": "/"})
    slots: bool = False
    step: int | str = "latest"

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", arguments.path(_WHO, "path", self.path))
        arguments.mapping(_WHO, "names", self.names)
        if not self.names or not all(isinstance(name, str) for pair in self.names.items() for name in pair):
            raise TypeError(f"{_WHO} requires names as `names`, from the checkpoint to the state, got {self.names!r}.")
        if not isinstance(self.slots, bool):
            raise TypeError(f"{_WHO} requires True or False as slots, got {self.slots!r}.")
        check_step(_WHO, self.step)


def settings_of(given: Any) -> WarmStart | None:
    """Returns the settings for the argument `warm_start` of a loop."""
    if given is None or isinstance(given, WarmStart):
        return given
    return WarmStart(arguments.path("Loop", "warm_start", given))


def begin(warm: WarmStart, session: Session, state: Variable, own: Collection[str]) -> None:
    """Restores the matching arrays of the checkpoint into the state of a new session.

    Args:
        warm: The settings.
        session: The session.
        state: The variable.
        own: As in `check`.

    Raises:
        ValueError, NotFoundError: As in `WarmStart`.
    """
    path, manifest, found = check(warm, state, own)
    there = below(manifest, root_of(manifest))
    pairs = paths.with_paths(state.spec)[0]
    places = dict(zip((name for name, _ in pairs), state.places or [None] * len(pairs), strict=True))

    def choose(manifest: Manifest) -> dict[str, fitting.Match]:
        taken = _chosen(warm, path, manifest, state.spec, own).taken
        return {name: fitting.Match((leaf,), jax.tree.structure(0)) for name, leaf in taken.items()}

    read = reading.read(
        path,
        choose,
        shardings={name: [places[name]] for name in found.taken},
    )
    replace(session, state, read)
    step = get_global_step(session.graph)
    if warm.slots and step is not None and step.op.name in manifest.variables:
        session.load({step.op.name: load_variable(path, step.op.name)})
    session.origin = f"begun with values of {path}"
    if AVERAGE in manifest.variables:  # They are not restored, because averages begin with the initial state.
        there = {**there, **{_joined(AVERAGE, leaf.path): leaf for leaf in manifest.variables[AVERAGE].leaves}}
    _report(path, found, there, [name for name, _ in pairs])


def check(warm: WarmStart, state: Variable, own: Collection[str]) -> tuple[str, Manifest, _Found]:
    """Returns the path of the checkpoint, its manifest, and the plan for the leaves of the state.

    Args:
        warm: The settings.
        state: The variable.
        own: The paths of leaves that belong to a training like slots: the step counter, metrics that accumulate.

    Raises:
        ValueError, NotFoundError: As in `WarmStart`.
    """
    path = checkpoint_of(_WHO, warm.path, warm.step)
    manifest = layout.read_manifest(path)[1]
    return path, manifest, _chosen(warm, path, manifest, state.spec, own)


def replace(session: Session, variable: Variable, new: Mapping[str, Any]) -> None:
    """Sets some leaves of a variable, by path, to arrays that the caller gives away."""
    pairs, structure = paths.with_paths(session.lowlevel.handed_over(variable))
    leaves = [new.get(path, leaf) for path, leaf in pairs]
    session.lowlevel.load({variable.op.name: structure.unflatten(leaves)}, owned=True)


class _Found(NamedTuple):
    """The leaves of a state by path: restored, of another shape or dtype, slots and the like, and new ones."""

    taken: dict[str, Leaf]
    unlike: dict[str, str]
    slots: list[str]
    new: list[str]


def _chosen(warm: WarmStart, path: str, manifest: Manifest, spec: Any, own: Collection[str]) -> _Found:
    there = below(manifest, root_of(manifest))
    rules = {ours.strip("/"): theirs.strip("/") for theirs, ours in warm.names.items()}
    pairs = paths.with_paths(spec)[0]
    here = [name for name, _ in pairs]
    for ours, theirs in rules.items():
        for name, known, where in ((ours, here, "the state"), (theirs, there, f"checkpoint '{path}'")):
            if not any(_covers(name, leaf) for leaf in known):
                raise ValueError(
                    f"{_WHO}: names has {name!r}, and {where} has nothing of that name. It has: {_shown(known)}."
                )
    found = _Found({}, {}, [], [])
    for (name, leaf), is_slot in zip(pairs, of_optimizer(spec), strict=True):
        ours = max((rule for rule in rules if _covers(rule, name)), key=len, default=None)
        saved = None if ours is None else there.get(_joined(rules[ours], name[len(ours) :].strip("/")))
        if not warm.slots and (is_slot or name in own):
            found.slots.append(name)
        elif saved is None:
            found.new.append(name)
        elif (saved.shape, saved.dtype) != (leaf.shape, str(leaf.dtype)):
            found.unlike[name] = f"{name} is {_form(saved)} there and {_form(leaf)} here"
        else:
            found.taken[name] = saved
    if not found.taken:
        lines = [*found.unlike.values(), *(f"{name} is not there, or not among `names`" for name in found.new)]
        lines += [
            f"{name} is of the optimizer, a metric, or counts steps, and slots=True takes it" for name in found.slots
        ]
        raise ValueError(
            f"{_WHO}: nothing of checkpoint '{path}' fits the state.\n  "
            + "\n  ".join(lines)
            + f"\nThe checkpoint has: {_shown(there)}. Map other names with `names`."
        )
    return found


def _report(path: str, found: _Found, there: Mapping[str, Leaf], here: Collection[str]) -> None:
    if not peers.speaks():
        return
    taken = {leaf.name for leaf in found.taken.values()}
    left = [name for name, leaf in there.items() if leaf.name not in taken]
    _logger.info(
        "Warm start from '%s'. Restored: %s. Initialized: %s. Left in the checkpoint: %s.",
        path,
        summed_up(found.taken, here),
        "; ".join(
            text
            for text in (
                summed_up([*found.new, *found.unlike], here),
                f"{summed_up(found.slots, here)} (slots=True restores these)" if found.slots else "",
            )
            if text
        )
        or "nothing",
        summed_up(left, there) or "nothing",
    )
    if found.unlike:
        _logger.warning("Warm start from '%s': %s. So these are initialized.", path, "; ".join(found.unlike.values()))


def summed_up(chosen: Iterable[str], among: Collection[str]) -> str:
    """Returns names as text, with one name for a part that is chosen completely.

    Example:
        >>> summed_up(["a/b", "a/c", "d/e"], ["a/b", "a/c", "d/e", "d/f"])
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
                below.setdefault(_joined(prefix, name[len(prefix) :].strip("/").partition("/")[0]), []).append(name)
            for longer, some in below.items():
                yield from parts(longer, some)

    return ", ".join(parts("", list(among)))


@contextlib.contextmanager
def advising(logdir: str | None) -> Iterator[None]:
    """Adds advice for loops to the error of a checkpoint that does not fit."""
    try:
        yield
    except (NotFoundError, InvalidArgumentError) as error:
        if not error.message.endswith(fitting.ADVICE):
            raise
        text = error.message.removesuffix(fitting.ADVICE)
        others = [line for line in text.splitlines()[1:] if not line.startswith(f"{fitting.MISSING}{AVERAGE}")]
        if all(line.startswith(fitting.SPARE) and not line.startswith(fitting.SPARE + STATE) for line in others):
            advice = (
                f"To add averages, go on in another directory: "
                f"run(another, warm_start=train.WarmStart({logdir!r}, slots=True))."
            )
        else:
            advice = (
                f"Begin a new training with the arrays that fit, in another directory: "
                f"run(another, warm_start={logdir!r}); see train.WarmStart."
            )
        raise type(error)(None, None, text + advice) from None


def _covers(part: str, name: str) -> bool:
    return not part or name == part or name.startswith(f"{part}/")


def _joined(part: str, rest: str) -> str:
    return f"{part}/{rest}" if part and rest else part or rest


def _form(leaf: Any) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _shown(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"

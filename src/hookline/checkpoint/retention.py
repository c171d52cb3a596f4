"""Which checkpoints stay and which go."""

from __future__ import annotations

from hookline import arguments

_SECS_PER_HOUR = 3600.0


class Retention:
    """The checkpoints one saver keeps, oldest first, and the rule by which old ones go. Touches no files.

    Args:
        max_to_keep: How many of the newest stay; None or 0 keeps all.
        keep_every_n_hours: Of those that would go, one is kept for good for every so many hours; None keeps none.

    Example:
        >>> retention = Retention(max_to_keep=2)
        >>> [retention.add(path, timestamp) for path, timestamp in [("a", 0), ("b", 60), ("c", 120)]]
        [[], [], ['a']]
        >>> retention.paths
        ['b', 'c']
    """

    def __init__(self, max_to_keep: int | None, keep_every_n_hours: float | None = None) -> None:
        if max_to_keep is not None:
            arguments.whole("Saver", "max_to_keep", max_to_keep)
        if keep_every_n_hours is not None:
            arguments.number("Saver", "keep_checkpoint_every_n_hours", keep_every_n_hours)
        if max_to_keep is not None and max_to_keep < 0:
            raise ValueError(f"Saver requires max_to_keep >= 0 (0 or None keeps all), got {max_to_keep}.")
        if keep_every_n_hours is not None and not keep_every_n_hours > 0:
            raise ValueError(f"Saver requires keep_checkpoint_every_n_hours > 0 (or None), got {keep_every_n_hours}.")
        self._max_to_keep = max_to_keep or None
        self._period_secs = None if keep_every_n_hours is None else keep_every_n_hours * _SECS_PER_HOUR
        self._kept: list[tuple[str, float, bool]] = []
        self._next_for_good: float | None = None

    @property
    def paths(self) -> list[str]:
        """The checkpoints that may still go one day, oldest first."""
        return [path for path, _, _ in self._kept]

    @property
    def timestamps(self) -> list[float]:
        """When each of `paths` was written, in seconds since the epoch."""
        return [timestamp for _, timestamp, _ in self._kept]

    def recover(self, checkpoints: list[tuple[str, float, bool]]) -> None:
        """Starts from what an earlier run has left, oldest first: (path, timestamp, whether it is extra)."""
        self._kept = list(checkpoints)
        self._next_for_good = None

    def add(self, path: str, timestamp: float, extra: bool = False) -> list[str]:
        """Takes note of a new complete checkpoint.

        Args:
            path: Where it is. A path known already was written anew and is now the newest.
            timestamp: When it was written, in seconds since the epoch.
            extra: Whether it does not count; of these only the newest stays.

        Returns:
            What to remove now, oldest first; never `path`.
        """
        removed = [other for other, _, is_extra in self._kept if extra and is_extra and other != path]
        self._kept = [item for item in self._kept if item[0] not in (path, *removed)]
        self._kept.append((path, timestamp, extra))
        counted = [item for item in self._kept if not item[2]]
        if self._next_for_good is None and self._period_secs is not None and counted:
            self._next_for_good = counted[0][1] + self._period_secs
        while self._max_to_keep is not None and len(counted) > self._max_to_keep:
            oldest, written_at, _ = counted.pop(0)
            self._kept = [item for item in self._kept if item[0] != oldest]
            if self._next_for_good is not None and written_at >= self._next_for_good:
                assert self._period_secs is not None
                self._next_for_good = written_at + self._period_secs
            else:
                removed.append(oldest)
        return removed

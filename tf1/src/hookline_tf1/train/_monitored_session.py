"""Monitored sessions, with the access to the raw session in published code: `sess._sess._sess...`."""

from __future__ import annotations

from typing import Any

from hookline import train as core
from hookline_tf1.train._in_default_graph import in_default_graph


class _Inside:
    """One of the nested sessions of TensorFlow's monitored session; here only the raw session exists.

    Args:
        raw: The raw session.
        depth: The number of further levels inside.
    """

    def __init__(self, raw: Any, depth: int) -> None:
        self._raw, self._depth = raw, depth

    @property
    def _sess(self) -> Any:
        return self._raw if self._depth == 1 else _Inside(self._raw, self._depth - 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class MonitoredSession(core.MonitoredSession):
    """`hookline.train.MonitoredSession`.

    References:
        `tf.train.MonitoredSession`.
    """

    __init__ = in_default_graph(core.MonitoredSession.__init__)

    @property
    def _sess(self) -> Any:
        return _Inside(self.raw_session(), 3)

    def _tf_sess(self) -> Any:
        return self.raw_session()


class SingularMonitoredSession(core.SingularMonitoredSession):
    """`hookline.train.SingularMonitoredSession`.

    References:
        `tf.train.SingularMonitoredSession`.
    """

    __init__ = in_default_graph(core.SingularMonitoredSession.__init__)

    @property
    def _sess(self) -> Any:
        return _Inside(self.raw_session(), 2)

    def _tf_sess(self) -> Any:
        return self.raw_session()

"""Parameter servers in this process, as a target of sessions."""

from __future__ import annotations

from hookline.distributed import ParameterServer, RemoteStore
from hookline.distributed.transport import DirectTransport


class Servers(DirectTransport):
    def __init__(self, count=1):
        super().__init__([ParameterServer() for _ in range(count)])

    def open_store(self, graph):
        return RemoteStore(graph, self)

    def hooks(self, summary_dir):
        return []

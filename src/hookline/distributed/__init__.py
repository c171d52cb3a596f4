"""Many processes: synchronous (in step, `initialize`), or asynchronous, with parameter servers that are Ray actors."""

from hookline.distributed.cluster import Cluster, ClusterOptions
from hookline.distributed.in_step import initialize
from hookline.distributed.ray_cluster import PrivateRayCluster
from hookline.distributed.remote_store import RemoteStore
from hookline.distributed.server import ParameterServer
from hookline.distributed.staleness_hook import StalenessHook

__all__ = [
    "Cluster",
    "ClusterOptions",
    "ParameterServer",
    "PrivateRayCluster",
    "RemoteStore",
    "StalenessHook",
    "initialize",
]

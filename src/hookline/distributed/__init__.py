"""Training in several processes: multi-process SPMD (`initialize`), or asynchronous workers with parameter servers."""

from hookline.distributed.cluster.cluster import Cluster, ClusterOptions
from hookline.distributed.cluster.initialize import initialize
from hookline.distributed.cluster.local_ray_cluster import LocalRayCluster
from hookline.distributed.server.server import ParameterServer
from hookline.distributed.worker.remote_store import RemoteStore
from hookline.distributed.worker.staleness_hook import StalenessHook

__all__ = [
    "Cluster",
    "ClusterOptions",
    "LocalRayCluster",
    "ParameterServer",
    "RemoteStore",
    "StalenessHook",
    "initialize",
]

"""Workers out of step: variables on parameter servers, which are Ray actors."""

from hookline.distributed.cluster import Cluster, ClusterOptions
from hookline.distributed.ray_cluster import PrivateRayCluster
from hookline.distributed.server import ParameterServer
from hookline.distributed.staleness_hook import StalenessHook
from hookline.distributed.store import RemoteStore

__all__ = ["Cluster", "ClusterOptions", "ParameterServer", "PrivateRayCluster", "RemoteStore", "StalenessHook"]

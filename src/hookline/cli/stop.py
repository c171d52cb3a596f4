"""`hookline stop`: ends the parameter servers of a job."""

from __future__ import annotations

import argparse

from hookline.distributed.cluster import Cluster, ClusterOptions


def run(arguments: argparse.Namespace) -> int:
    """Ends the servers, and returns the exit status."""
    options = ClusterOptions(token_path=arguments.token_path)
    count = Cluster(arguments.address, job=arguments.job, options=options).stop_servers()
    print(f"Ended {count} parameter servers of job {arguments.job!r}.")
    return 0

"""The main process of a local Ray cluster. It is run by its path, so that it imports nothing of hookline.

It starts the cluster, writes its address, and waits. Its standard input ends when the starting process closes it or
dies. Then it removes the cluster's folder and kills its process group, which includes everything that Ray started. If
an essential part of the cluster dies, it kills the group, too: the rest would only seem to work.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import sys
from pathlib import Path

_POLL_SECS = 1.0


def _main(folder: Path, object_store_bytes: int) -> None:
    # Everything that Ray starts inherits this. The servers must run until the tasks have saved; a SIGKILL ends them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    import ray

    # No CPUs, because servers are actors that ask for none. So Ray starts no idle workers.
    ray.init(
        address="local",
        num_cpus=0,
        num_gpus=0,
        include_dashboard=False,
        object_store_memory=object_store_bytes,
        log_to_driver=False,
        configure_logging=False,
        # Ray lets every user write into its folder, so we give it one inside our private folder. Its name is short,
        # because the paths of sockets may have no more than 107 characters.
        _temp_dir=str(folder / "r"),
        _node_ip_address="127.0.0.1",
    )
    address = ray.get_runtime_context().gcs_address
    # The raylet ends when one of its agents dies, so checking these two is enough.
    ports = {"GCS": int(address.rpartition(":")[2]), "raylet": int(ray.nodes()[0]["NodeManagerPort"])}
    partial = folder / "address.partial"
    partial.write_text(address, encoding="utf-8")
    partial.rename(folder / "address")
    while not select.select([sys.stdin], [], [], _POLL_SECS)[0]:
        dead = [name for name, port in ports.items() if not _listens(port)]
        if dead:
            print(f"The {' and the '.join(dead)} of the cluster died.", flush=True)
            break
    else:
        shutil.rmtree(folder, ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=_POLL_SECS).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        pass  # For example a timeout of a process that was stopped and may be continued.
    return True


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))

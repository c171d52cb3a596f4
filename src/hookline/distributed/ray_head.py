"""The process of a private Ray cluster. It is run by its path, so that it imports nothing of hookline.

It starts the cluster, writes its address, and waits. Its standard input ends when the starting process closes it or
dies. Then it removes the cluster's folder and kills its process group, which holds everything that Ray started.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path


def _main(folder: Path, object_store_bytes: int) -> None:
    # Everything that Ray starts inherits this. The servers are needed until the tasks have saved; a SIGKILL ends them.
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
        # Ray lets every user write into the folder that it gets, so it gets one inside ours. Its name is short, because
        # those of sockets may have no more than 107 characters.
        _temp_dir=str(folder / "r"),
        _node_ip_address="127.0.0.1",
    )
    partial = folder / "address.partial"
    partial.write_text(ray.get_runtime_context().gcs_address, encoding="utf-8")
    partial.rename(folder / "address")
    sys.stdin.read()
    shutil.rmtree(folder, ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))

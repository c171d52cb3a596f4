"""The process of a private Ray cluster. It is run by its path, so that nothing of hookline is imported.

It starts the cluster, writes its address, and waits. When its standard input ends, because whoever started it closed it
or died in whatever way, it removes the cluster's folder and kills its process group, which holds all that Ray started.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path


def _main(folder: Path, object_store_bytes: int) -> None:
    # All that Ray starts inherits it. The servers are needed until the tasks have saved; what ends them is a SIGKILL.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    import ray

    # No CPUs: servers are actors that ask for none, and Ray starts no idle workers then.
    ray.init(
        address="local",
        num_cpus=0,
        num_gpus=0,
        include_dashboard=False,
        object_store_memory=object_store_bytes,
        log_to_driver=False,
        configure_logging=False,
        _temp_dir=str(folder),
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

"""One process of the tests of ports: it prints the addresses on which it listens once it has computed with the others.

With arguments, the address of process 0 and its own number, it joins the others itself.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

import hookline as hl


def listening() -> list[str]:
    """Returns the addresses on which this process listens."""
    mine = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            mine.add(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # The port of the listing itself.
            continue
    found = []
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        with open(f"/proc/self/net/{table}", encoding="ascii") as lines:
            rows = [line.split() for line in list(lines)[1:]]
        for row in rows:
            if row[3] == "0A" and f"socket:[{row[9]}]" in mine:
                digits = row[1].partition(":")[0]
                words = [int(digits[place : place + 8], 16) for place in range(0, len(digits), 8)]
                found.append(socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)).removeprefix("::ffff:"))
    return found


if len(sys.argv) > 1:
    hl.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
multihost_utils.process_allgather(jnp.ones(2))
os.write(1, f"{jax.process_index()} listens on {' '.join(sorted(listening()))}\n".encode())  # In one piece.
multihost_utils.process_allgather(jnp.ones(2))

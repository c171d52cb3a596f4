"""`tf.RunOptions`, with the names of its trace levels."""

from __future__ import annotations

from typing import Any, ClassVar

import hookline as core
from hookline_tf1._machinery.ignored_arguments import ignored


class RunOptions(core.RunOptions):
    """Options of a run; with a trace level above 0, the run's metadata include the times of its stages.

    References:
        `tf.RunOptions`. All trace levels above 0 are the same.
    """

    NO_TRACE: ClassVar[int] = 0
    SOFTWARE_TRACE: ClassVar[int] = 1
    HARDWARE_TRACE: ClassVar[int] = 2
    FULL_TRACE: ClassVar[int] = 3

    def __init__(
        self,
        trace_level: int = 0,
        timeout_in_ms: int = 0,
        inter_op_thread_pool: int = 0,
        output_partition_graphs: bool = False,
        debug_options: Any = None,
        report_tensor_allocations_upon_oom: bool = False,
        experimental: Any = None,
    ) -> None:
        ignored("tf.RunOptions", timeout_in_ms=timeout_in_ms or None, debug_options=debug_options)
        ignored("tf.RunOptions", inter_op_thread_pool=inter_op_thread_pool or None, experimental=experimental)
        ignored("tf.RunOptions", report_tensor_allocations_upon_oom=report_tensor_allocations_upon_oom)
        super().__init__(trace_level=trace_level, output_partition_graphs=output_partition_graphs)

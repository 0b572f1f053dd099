"""How busy the machine is.

Place: read before timing. Output: whether timings would be disturbed; where the system does not tell, they would not.
"""

from __future__ import annotations

import os


def machine_is_busy() -> bool:
    """Whether more wants to run than there are cores, by the load of the last minute."""
    if not hasattr(os, "getloadavg"):
        return False
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return os.getloadavg()[0] > cores

"""The user's process of ``benchmarks.behind``: calls one product of matrices after another.

Place: started by ``benchmarks.behind``; threads by ``OMP_NUM_THREADS``.
Protocol: in: seconds, a line each. Out: a line of JSON each: ``calls``, ``call_ms``, ``late_ms``, ``longest_ms``,
``seconds`` and, of the processor, ``used_s``.
"""

from __future__ import annotations

import json
import sys
import time

import torch

_SIZE = 384


def main() -> None:
    """Answer until the input ends."""
    left, right = torch.randn(_SIZE, _SIZE), torch.randn(_SIZE, _SIZE)
    for line in sys.stdin:
        print(json.dumps(_calls(float(line), left, right)), flush=True)


def _calls(seconds: float, left: torch.Tensor, right: torch.Tensor) -> dict[str, float]:
    took: list[float] = []
    used = time.process_time()
    begin = now = time.perf_counter()
    while now - begin < seconds:
        torch.mm(left, right)
        end = time.perf_counter()
        took.append(end - now)
        now = end
    took.sort()
    return {
        "calls": len(took),
        "call_ms": took[len(took) // 2] * 1e3,
        "late_ms": took[int(len(took) * 0.999)] * 1e3,
        "longest_ms": took[-1] * 1e3,
        "seconds": now - begin,
        "used_s": time.process_time() - used,
    }


if __name__ == "__main__":
    main()

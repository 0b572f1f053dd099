"""Run time: load the package, compile the model as well, compare both with eager, and say what this machine lacks.

Usage: ``python serve.py PACKAGE``. A server would go on from here (see ``examples/serving``).
"""

from __future__ import annotations

import sys
import time

import torch
from model import example, make

import mixbackend


def main() -> None:
    """Answer once, by the package and by ``torch.compile``."""
    begin = time.perf_counter()
    packaged = mixbackend.load(sys.argv[1])
    with torch.no_grad():
        expected = make()(example())
        torch.testing.assert_close(packaged(example()), expected, rtol=1e-4, atol=1e-4)
        print(f"package: first result after {time.perf_counter() - begin:.2f} s")
        begin, backend = time.perf_counter(), mixbackend.auto({"select": "off"})
        torch.testing.assert_close(torch.compile(make(), backend=backend)(example()), expected, rtol=1e-4, atol=1e-4)
        print(f"torch.compile: first result after {time.perf_counter() - begin:.2f} s")
    print(backend.report())


if __name__ == "__main__":
    main()

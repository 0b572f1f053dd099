"""The process behind of ``benchmarks.behind``: compiles C++ and Python for ever, one thing at a time.

Place: started by ``benchmarks.behind`` with the way as its argument.
Output: a line when it begins.
"""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys

from mixbackend.host.behind_worker import take_low_priority

_SOURCE = """
#include <algorithm>
#include <map>
#include <regex>
#include <string>
#include <vector>
int run() { std::map<std::string, std::vector<int>> kept; kept["a"] = {3, 1, 2};
std::sort(kept["a"].begin(), kept["a"].end()); return std::regex_match("a", std::regex("[a-z]+")); }
"""
_COMPILER = ("g++", "-O2", "-x", "c++", "-", "-S", "-o", "/dev/null")


def main(way: str) -> None:
    """Compile until the process is ended."""
    if not way.endswith("session"):
        os.setpgid(0, 0)
    if way == "worker":
        take_low_priority()
    if way.startswith("nice"):
        os.nice(19)
    if way.startswith("idle"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    text = inspect.getsource(ast) + inspect.getsource(subprocess)
    print("begun", flush=True)
    while True:
        subprocess.run(_COMPILER, input=_SOURCE, text=True, check=True)
        compile(text, "text", "exec")


if __name__ == "__main__":
    main(sys.argv[1])

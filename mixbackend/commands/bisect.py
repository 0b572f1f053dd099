"""``mixbackend bisect COMMAND``: the step of compiling that makes a command fail.

Place: a command around torch's ``CompilerBisector``, which puts one backend after the other in place of what is
compiled with, this one last; then switches its steps off. Output: what it found, or with ``--json`` one object; what it
does goes to standard error.
Exit status: 1 if the command fails with a backend.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict

from mixbackend.commands.output import print_json, quiet_stdout
from mixbackend.contracts.torch_compat import bisected, join_bisection
from mixbackend.host.debug import PASSES, REGIONS


def run(command: Sequence[str], as_json: bool) -> int:
    """Bisect; the exit status."""
    join_bisection((PASSES, REGIONS))
    with quiet_stdout():
        found = bisected(lambda more: subprocess.run(command, env={**os.environ, **more}, stdout=2).returncode == 0)
    if as_json:
        print_json({"found": found is not None, **({} if found is None else asdict(found))})
    elif found is None:
        print("the command succeeds with every backend")
    else:
        step = f", {found.step} {found.number}: {found.text}" if found.step else ""
        print(f"it fails with {found.backend}{step}")
    return 0 if found is None else 1

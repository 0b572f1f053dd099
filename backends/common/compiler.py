"""The C++ compiler of this machine.

Place: asked by what needs one: the C++ target, inductor, the watch of weights. Found once per process.
Input: ``CXX`` and ``PATH``. Output: a command that runs, with its version; or why there is none.
Non-goals: flags, features and compiling (``codegen/targets/cpp``).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache

_CANDIDATES = ("g++", "clang++", "c++")
_PROBE_TIMEOUT_S = 60
_REMEDY = "install one (Debian, Ubuntu: apt install g++; conda: cxx-compiler) or set CXX"


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler that answered.

    Attributes:
        command: program and its fixed arguments.
        version: first line of what it says of itself.
    """

    command: tuple[str, ...]
    version: str

    @property
    def is_clang(self) -> bool:
        """Whether it takes clang's options."""
        return "clang" in self.version.lower()


class NoCompilerError(RuntimeError):
    """No C++ compiler can be used; the text says why and what to do."""


def find_compiler() -> Compiler:
    """The compiler named by ``CXX``, else the first of g++, clang++ and c++ on the path.

    Raises:
        NoCompilerError: there is none, or ``CXX`` names one that does not run.
    """
    return _find(os.environ.get("CXX", ""), os.environ.get("PATH", ""))


@lru_cache(maxsize=8)
def _find(chosen: str, path: str) -> Compiler:
    if chosen:
        return _ask(tuple(shlex.split(chosen)))
    for name in _CANDIDATES:
        found = shutil.which(name, path=path)
        if found is not None:
            return _ask((found,))
    raise NoCompilerError(f"no C++ compiler: none of {', '.join(_CANDIDATES)} is on the path; {_REMEDY}")


def _ask(command: tuple[str, ...]) -> Compiler:
    try:
        answer = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCompilerError(f"the C++ compiler {shlex.join(command)} does not run: {error}; {_REMEDY}") from error
    if answer.returncode != 0 or not answer.stdout.strip():
        said = answer.stderr.strip()[:500]
        raise NoCompilerError(f"the C++ compiler {shlex.join(command)} fails: {said}; {_REMEDY}")
    return Compiler(command, answer.stdout.splitlines()[0].strip())

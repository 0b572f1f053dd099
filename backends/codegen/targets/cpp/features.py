"""What the processor has, as the compiler sees it.

Place: between ``compiler`` and ``build``. Input: a compiler. Output: the bytes of a vector register and of the
first-level cache, the flags that make the compiler use the processor, and a digest of everything those flags switch on:
code is never shared between machines with different digests. A register of AArch64 has 16 bytes (NEON);
where there is SVE, the compiler may use it inside loops over lanes.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from dataclasses import dataclass
from functools import lru_cache

from mixbackend.backends.common.compiler import Compiler, NoCompilerError

_WIDE = frozenset({"__AVX512F__", "__AVX512BW__", "__AVX512DQ__", "__AVX512VL__"})
_MIDDLE = frozenset({"__AVX2__", "__FMA__"})
USUAL_CACHE_BYTES = 32 * 1024
_FIRST_CACHE = "SC_LEVEL1_DCACHE_SIZE"
_ARM = frozenset({"aarch64", "arm64"})


@dataclass(frozen=True, slots=True)
class Features:
    """See the module's docstring.

    Attributes:
        vector_bytes: 64, 32 or 16.
        flags: for the compiler.
        digest: equal where the same code may run.
        cache_bytes: of a core's first-level cache for data.
    """

    vector_bytes: int
    flags: tuple[str, ...]
    digest: str
    cache_bytes: int = USUAL_CACHE_BYTES


@lru_cache(maxsize=8)
def machine_features(compiler: Compiler) -> Features:
    """Features of this machine.

    Raises:
        NoCompilerError: the compiler cannot even preprocess.
    """
    problem = ""
    for tuning in _tunings(platform.machine().lower()):
        command = [*compiler.command, *tuning, "-dM", "-E", "-x", "c++", "-"]
        answer = subprocess.run(command, input="", capture_output=True, text=True)
        if answer.returncode == 0:
            return _features(answer.stdout, tuning)
        problem = answer.stderr
    raise NoCompilerError(f"the C++ compiler {compiler.version} fails: {problem.strip()[:500]}")


def _tunings(machine: str) -> tuple[tuple[str, ...], ...]:
    """Tried in order. On x86 ``-mcpu`` chooses no instructions; on AArch64 ``-march`` names no processor."""
    tunings = (("-march=native",), ("-mcpu=native",))
    return (*(reversed(tunings) if machine in _ARM else tunings), ())


def _features(macros: str, tuning: tuple[str, ...]) -> Features:
    lines = sorted(line for line in macros.splitlines() if line.startswith("#define "))
    names = {line.split()[1] for line in lines}
    vector_bytes = 64 if names >= _WIDE else 32 if names >= _MIDDLE else 16
    # Left to itself the compiler halves the registers of loops over lanes.
    wide = ("-mprefer-vector-width=512",) if vector_bytes == 64 else ()
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return Features(vector_bytes, (*tuning, *wide), digest, _first_cache_bytes() or USUAL_CACHE_BYTES)


def _first_cache_bytes() -> int:
    """0 where the system does not say."""
    known = getattr(os, "sysconf_names", {})
    return max(0, os.sysconf(_FIRST_CACHE)) if _FIRST_CACHE in known else 0

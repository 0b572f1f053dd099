"""Kits: what it takes to load objects of the C++ target on a machine without the compiler that made them.

Place: beside ``target``; a part of packages (``mixbackend.export``). Input: a toolchain and its compiled launcher.
Output: text, and the same back: a toolchain that describes the other machine's, with the launcher's object.
Invariants: an object is loaded where the processor is of the same kind and has every instruction set that the other
machine's had, since code for that machine may use them all; and where calls are packed by the same text.
"""

from __future__ import annotations

import base64
import json
import platform
import re
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mixbackend.backends.codegen.targets.cpp.build import Function, FunctionLibrary, Toolchain
from mixbackend.backends.codegen.targets.cpp.features import Features
from mixbackend.backends.codegen.targets.cpp.launcher import LAUNCHER_TEXT
from mixbackend.backends.common.compiler import Compiler
from mixbackend.contracts import CodegenError

FORMAT = 1
_PROCESSOR = Path("/proc/cpuinfo")
_SETS = re.compile(
    r"^(flags|Features)\s*:(.*)$",
    re.MULTILINE,
)
_OF_COMPILERS = re.compile(
    r"(mmx|sse\w*|ssse3|pni|avx\w*|fma\w*|f16c|bmi\d|popcnt|abm|movbe|aes|pclmulqdq|sha\w*|gfni|vaes|vpclmulqdq|amx_\w+"
    r"|adx|rdseed|rdrnd|fsgsbase|xsave\w*|clflushopt|clwb|cldemote|movdir\w+|serialize|waitpkg|ptwrite|lahf_lm|cx16"
    r"|3dnowprefetch|hreset|sm[34]|asimd\w*|sve\w*|sme(?!p)\w*|i8mm|bf16|lrcpc\w*|atomics|crc32|pmull|fp\w*|dcp\w+|rng)"
)
"""Names of instruction sets that compilers may use, among all that the kernel says of a processor."""


@lru_cache(maxsize=1)
def instructions_here() -> frozenset[str]:
    """Instruction sets of this processor; empty where the system does not say."""
    try:
        found = _SETS.search(_PROCESSOR.read_text())
    except OSError:
        return frozenset()
    return frozenset(name for name in found[2].split() if _OF_COMPILERS.fullmatch(name)) if found else frozenset()


@dataclass(frozen=True)
class Kit:
    """See the module's docstring.

    Attributes:
        compiler, features, openmp, digest: of the toolchain.
        machine: kind of processor.
        instructions: its instruction sets.
        launcher_key: of the launcher among the functions of the toolchain.
        launcher_object: the object that holds it.
    """

    compiler: Compiler
    features: Features
    openmp: bool
    digest: str
    machine: str
    instructions: frozenset[str]
    launcher_key: str
    launcher_object: bytes

    @classmethod
    def of(cls, toolchain: Toolchain, launcher_key: str, launcher_object: bytes) -> Kit:
        """Of a toolchain of this machine."""
        return cls(
            toolchain.compiler,
            toolchain.features,
            toolchain.openmp,
            toolchain.digest,
            platform.machine(),
            instructions_here(),
            launcher_key,
            launcher_object,
        )

    def to_bytes(self) -> bytes:
        """The kit as a package keeps it."""
        fields = {
            "format": FORMAT,
            "compiler": self.compiler.version,
            "features": asdict(self.features),
            "openmp": self.openmp,
            "digest": self.digest,
            "machine": self.machine,
            "instructions": sorted(self.instructions),
            "launcher_key": self.launcher_key,
            "launcher_object": base64.b64encode(self.launcher_object).decode(),
        }
        return json.dumps(fields).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Kit:
        """A kit that was kept.

        Raises:
            CodegenError: it is none, or one of another version.
        """
        try:
            fields: dict[str, Any] = json.loads(content)
            if fields["format"] != FORMAT:
                raise CodegenError(f"a kit of the C++ target has the format {fields['format']!r} instead of {FORMAT}")
            features = fields["features"]
            return cls(
                Compiler((), str(fields["compiler"])),
                Features(
                    int(features["vector_bytes"]),
                    tuple(map(str, features["flags"])),
                    str(features["digest"]),
                    int(features["cache_bytes"]),
                ),
                bool(fields["openmp"]),
                str(fields["digest"]),
                str(fields["machine"]),
                frozenset(map(str, fields["instructions"])),
                str(fields["launcher_key"]),
                base64.b64decode(fields["launcher_object"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CodegenError(f"a kit of the C++ target cannot be read: {error}") from error

    def check(self) -> None:
        """Raise if objects of its toolchain do not run here.

        Raises:
            CodegenError: with what is missing.
        """
        if self.machine != platform.machine():
            raise CodegenError(f"its code is for {self.machine}, and this is {platform.machine()}")
        missing = sorted(self.instructions - instructions_here())
        if missing or not self.instructions:
            raise CodegenError(f"its code may use instructions that this processor lacks: {', '.join(missing)}")

    def toolchain(self, folder: Path) -> Toolchain:
        """The toolchain, as far as loading needs it."""
        return Toolchain(self.compiler, self.features, self.openmp, folder, self.digest)

    def launcher(self, library: FunctionLibrary) -> Function:
        """The launcher, loaded from the library's folder.

        Raises:
            CodegenError: calls are packed otherwise here, or it cannot be loaded.
        """
        if library.key(LAUNCHER_TEXT) != self.launcher_key:
            raise CodegenError("its code is called otherwise than this version of mixbackend calls it")
        found = library.load([self.launcher_key])
        if found is None:
            library.install(self.launcher_object, [self.launcher_key])
            found = library.load([self.launcher_key])
        if found is None:
            raise CodegenError("its launcher cannot be loaded")
        return found[0]

"""The C++ target: kernels as vector code for this machine's processor, with threads where the compiler has OpenMP.

Place: the default target of the code generator. Steps: ``printer`` (kernels to text), ``build`` (text to functions,
through a cache on disk), ``launcher`` (all kernels of a program in one call).
Artifacts hold the compiled objects themselves, so that a machine of the same kind loads them without a compiler run;
they are accepted as far as the artifact store is trusted, and loaded from a folder that only this user can write to.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch

from mixbackend.backends.codegen.call_table import CallTable
from mixbackend.backends.codegen.ir.products import matrix_product
from mixbackend.backends.codegen.ir.stages import Stage, is_product
from mixbackend.backends.codegen.ir.templates import PRODUCT_DIMENSIONS
from mixbackend.backends.codegen.targets.cpp.build import (
    MODULE_HEAD,
    PLACEHOLDER,
    Function,
    FunctionLibrary,
    Toolchain,
)
from mixbackend.backends.codegen.targets.cpp.features import machine_features
from mixbackend.backends.codegen.targets.cpp.kit import Kit
from mixbackend.backends.codegen.targets.cpp.launcher import LAUNCHER_TEXT, make_launch
from mixbackend.backends.codegen.targets.target import CompiledProgram, Launch, Target, TargetTraits
from mixbackend.backends.common.compiler import NoCompilerError, find_compiler
from mixbackend.backends.common.private_folder import private_cache_folder
from mixbackend.contracts import Availability, CodegenError, thread_policy

if TYPE_CHECKING:
    from mixbackend.backends.codegen.ir.kernel import AnyKernel
    from mixbackend.backends.codegen.ir.program import Program

_DTYPES = frozenset(
    {
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
    }
)
_TEMPLATES = frozenset({"attention", "product"})
"""Those that ``templates`` prints, without importing it."""
_SCRATCH_BYTES = 256 * 1024


class CppTarget(Target):
    """See the module's docstring.

    Args:
        folder: of the cache; the user's unless given.
        openmp: whether to use threads; ``None`` asks the compiler.
        kit: objects of another machine that are loaded here; nothing is compiled then.
    """

    name: ClassVar[str] = "cpp"

    def __init__(self, folder: Path | None = None, openmp: bool | None = None, kit: Kit | None = None) -> None:
        self._folder = folder
        self._openmp = openmp
        self._kit = kit

    def availability(self) -> Availability:
        """Whether there is a C++ compiler that makes loadable objects; of a kit, whether its objects run here."""
        try:
            if self._kit is not None:
                self._kit.check()
            _ = self._launcher
        except (NoCompilerError, CodegenError, OSError) as error:
            return Availability(False, reason=str(error))
        return Availability(True, version=self._toolchain.compiler.version)

    def fingerprint(self) -> str:
        """Compiler, flags, features, headers and printer, in one hash; the compiler also by name."""
        toolchain = self._toolchain
        threads = "openmp" if toolchain.openmp else "one thread"
        return f"{toolchain.compiler.version}, {toolchain.features.vector_bytes}-byte vectors, {threads}, " + (
            f"{toolchain.digest[:16]}, printer {_printer_digest()[:16]}{', only loaded' if self._kit else ''}"
        )

    def loading(self) -> str:
        """The toolchain, and how kernels are called."""
        return f"cpp {self._toolchain.digest} launcher {hashlib.sha256(LAUNCHER_TEXT.encode()).hexdigest()}"

    def kit(self) -> bytes | None:
        """The toolchain as it is described, and the compiled launcher."""
        if self._kit is not None:
            return self._kit.to_bytes()
        _ = self._launcher  # compiled now, unless the cache has it
        library = FunctionLibrary(self._toolchain, "")
        (function,) = library.functions([LAUNCHER_TEXT])
        return Kit.of(self._toolchain, function.key, library.object_bytes(function.object_hash)).to_bytes()

    def with_kit(self, kit: bytes) -> Target:
        """One that loads what this toolchain of another machine made."""
        return CppTarget(self._folder, kit=Kit.from_bytes(kit))

    def traits(self) -> TargetTraits:
        """What the scheduler has to know."""
        return TargetTraits(
            device_type="cpu",
            vector_bytes=self._toolchain.features.vector_bytes,
            scratch_bytes=_SCRATCH_BYTES,
            parallel_width=max(1, thread_policy().threads) if self._toolchain.openmp else 1,
            dtypes=_DTYPES,
            templates=_TEMPLATES,
            tells=True,
        )

    def objection(self, stage: Stage) -> str | None:
        """Of products, it has those of two matrices, images among them, as a template."""
        if not is_product(stage):
            return None
        product = matrix_product(stage)
        if product is None or max(len(product.rows), len(product.terms)) > PRODUCT_DIMENSIONS:
            return super().objection(stage)
        return None

    def compile(self, program: Program) -> CompiledProgram:
        """Compile what no program before had."""
        return self.compile_all([program])[0]

    def compile_all(self, programs: Sequence[Program]) -> list[CompiledProgram]:
        """Compile what no program before had, the kernels of all of them side by side."""
        if self._kit is not None:
            raise CodegenError("here the C++ target only loads what was compiled elsewhere: there is no such compiler")
        texts = [[_text(kernel) for kernel in program.kernels] for program in programs]
        functions = iter(self._library.functions([text for own in texts for text in own]))
        return [
            self._compiled(program, own, list(islice(functions, len(own))))
            for program, own in zip(programs, texts, strict=True)
        ]

    def _compiled(self, program: Program, texts: Sequence[str], functions: Sequence[Function]) -> CompiledProgram:
        source = _readable(texts, functions)
        launch = self._launch(program.call_table, functions)
        return CompiledProgram(launch, source, _pack(self._library, functions, source))

    def load(self, calls: CallTable, artifact: bytes) -> CompiledProgram:
        """Take the objects from the cache, else from the artifact.

        Raises:
            CodegenError: the artifact is not one of this program and machine, or cannot be loaded.
        """
        try:
            content = json.loads(zlib.decompress(artifact))
            keys, source = list(content["keys"]), str(content["source"])
            objects = {base64.b64decode(item["object"]): list(item["keys"]) for item in content["objects"]}
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            raise CodegenError(f"an artifact of compiled kernels cannot be read: {error}") from error
        if content.get("toolchain") != self._toolchain.digest or len(keys) != calls.kernel_count:
            raise CodegenError("an artifact of compiled kernels belongs to another program or machine")
        functions = self._library.load(keys)
        if functions is None:
            for item, held in objects.items():
                self._library.install(item, [key for key in held if key in keys])
            functions = self._library.load(keys)
        if functions is None:
            raise CodegenError("an artifact of compiled kernels lacks kernels that it names")
        return CompiledProgram(self._launch(calls, functions), source, artifact)

    @cached_property
    def _toolchain(self) -> Toolchain:
        if self._kit is not None:
            return self._kit.toolchain(self._folder or private_cache_folder("codegen-cpp"))
        compiler = find_compiler()
        features = machine_features(compiler)
        folder = self._folder or private_cache_folder("codegen-cpp")
        threaded = Toolchain(compiler, features, True, folder)
        openmp = _openmp_works(threaded) if self._openmp is None else self._openmp
        return threaded if openmp else Toolchain(compiler, features, False, folder)

    @cached_property
    def _library(self) -> FunctionLibrary:
        return FunctionLibrary(self._toolchain, MODULE_HEAD)

    def _launch(self, calls: CallTable, functions: Sequence[Function]) -> Launch:
        return make_launch(calls, [function.address for function in functions], self._launcher)

    @cached_property
    def _launcher(self) -> int:
        """Address of the compiled launcher, loaded once for all programs."""
        if self._kit is not None:
            return self._kit.launcher(FunctionLibrary(self._toolchain, "")).address
        return FunctionLibrary(self._toolchain, "").functions([LAUNCHER_TEXT])[0].address


@lru_cache(maxsize=4096)
def _text(kernel: AnyKernel) -> str:
    # Only here: what is loaded from artifacts is not printed.
    from mixbackend.backends.codegen.targets.cpp.printer import print_any_kernel

    return print_any_kernel(kernel, PLACEHOLDER)


def _readable(texts: Sequence[str], functions: Sequence[Function]) -> str:
    """The text as it was compiled, all kernels in one."""
    named = [text.replace(PLACEHOLDER, function.symbol) for text, function in zip(texts, functions, strict=True)]
    return "\n".join([MODULE_HEAD, *named])


def _pack(library: FunctionLibrary, functions: Sequence[Function], source: str) -> bytes:
    held: dict[str, list[str]] = {}
    for function in functions:
        held.setdefault(function.object_hash, []).append(function.key)
    content = {
        "toolchain": library.toolchain.digest,
        "keys": [function.key for function in functions],
        "objects": [
            {"object": base64.b64encode(library.object_bytes(name)).decode(), "keys": keys}
            for name, keys in held.items()
        ],
        "source": source,
    }
    return zlib.compress(json.dumps(content).encode(), 1)


def _openmp_works(toolchain: Toolchain) -> bool:
    """Whether the compiler takes OpenMP and its runtime can be loaded: the launcher, which uses it, tells."""
    try:
        FunctionLibrary(toolchain, "").functions([LAUNCHER_TEXT])
    except CodegenError:
        return False
    return True


@lru_cache(maxsize=1)
def _printer_digest() -> str:
    texts = [path.name.encode() + path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()

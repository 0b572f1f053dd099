"""From C++ text to functions in memory, through a cache on disk.

Place: the second half of the C++ target, after ``printer``.
Input: texts of functions, each under a placeholder name. Output: their addresses in this process.
A shared object is named by the SHA-256 of its bytes (``<hash>.so``); a function is found by the hash of its text and
of everything else that made it (``<key>.ref`` names the object). So equal kernels of different programs compile once,
and a program needs few objects.
Invariants: files appear whole (written aside, then renamed), so processes may share the folder; an object with bytes
that do not match its name is built again; nothing is loaded from a folder that others can write to.
Non-goals: eviction; the objects are small.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mixbackend.backends.codegen.targets.cpp.features import Features
from mixbackend.backends.common import forks
from mixbackend.backends.common.compiler import Compiler
from mixbackend.backends.common.private_folder import distrust
from mixbackend.backends.common.side_by_side import side_by_side
from mixbackend.backends.common.whole_file import replacing
from mixbackend.contracts import CodegenError

PLACEHOLDER = "mb_function"
"""Name under which a function is given to ``FunctionLibrary``; it gets one of its own from its text."""

MODULE_HEAD = '#include "vector.hpp"\n#include "kernel.hpp"\n\nusing namespace mb;\n'
"""What an object with printed kernels begins with."""

_HEADERS = Path(__file__).parent
_FLAGS = (
    *("-std=gnu++17", "-O2", "-fPIC", "-shared"),
    *("-fno-math-errno", "-fno-trapping-math", "-fwrapv", "-fno-strict-aliasing"),
    *("-fno-exceptions", "-fno-rtti", "-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-w"),
)
# Loops over lanes become vector instructions; the rest of -O3 costs a quarter of the time and gains nothing here.
_GCC_FLAGS = ("-ftree-slp-vectorize", "-ftree-loop-vectorize", "-fvect-cost-model=dynamic")
_COMPILE_TIMEOUT_S = 600
_MOST_PIECES = 8
_TEMPLATE_CHARACTERS = 16000
"""A kernel that calls a template of a header takes a compiler 0.3 s, as so many characters of printed loops do."""
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Toolchain:
    """Everything that decides what a text becomes.

    Attributes:
        compiler, features: of this machine.
        openmp: whether functions may start threads.
        folder: of the cache.
        told: its digest, where it is that of another machine, with a compiler that is not here.
    """

    compiler: Compiler
    features: Features
    openmp: bool
    folder: Path
    told: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        """Options of the compiler."""
        sizes = f"-DMB_VECTOR_BYTES={self.features.vector_bytes}", f"-DMB_CACHE_BYTES={self.features.cache_bytes}"
        openmp = ("-fopenmp",) if self.openmp else ()
        loops = () if self.compiler.is_clang else _GCC_FLAGS
        return (*_FLAGS, *loops, *self.features.flags, *openmp, *sizes, f"-I{_HEADERS}")

    @property
    def digest(self) -> str:
        """Hash of compiler, flags, features and headers."""
        if self.told:
            return self.told
        told = [*self.compiler.command, self.compiler.version, *self.flags[:-1], self.features.digest, header_digest()]
        return hashlib.sha256("\0".join(told).encode()).hexdigest()


@lru_cache(maxsize=1)
def header_digest() -> str:
    """Hash of every header that generated text may include."""
    texts = [path.name.encode() + b"\0" + path.read_bytes() for path in sorted(_HEADERS.glob("*.hpp"))]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


@dataclass(frozen=True, slots=True)
class Function:
    """A compiled function.

    Attributes:
        key: hash of its text and of the toolchain.
        object_hash: of the shared object that holds it.
        address: in this process.
    """

    key: str
    object_hash: str
    address: int

    @property
    def symbol(self) -> str:
        """Its name in the object."""
        return symbol_of(self.key)


def symbol_of(key: str) -> str:
    """Name of a function in its object."""
    return f"mb_{key[:40]}"


class FunctionLibrary:
    """Functions by text. Safe for many threads and processes.

    Args:
        toolchain: what compiles.
        head: text before the functions of an object: includes.
    """

    def __init__(self, toolchain: Toolchain, head: str) -> None:
        self.toolchain = toolchain
        self._head = head
        self._digest = toolchain.digest
        self._lock = forks.lock()
        self._functions: dict[str, Future[Function]] = {}
        self._objects: dict[str, ctypes.CDLL] = {}
        forks.follow(self)

    def after_fork(self) -> None:
        """In the child of a fork: what other threads were making will not be made; the rest is found in the cache."""
        self._functions = {}

    def key(self, text: str) -> str:
        """Key of a function."""
        return hashlib.sha256("\0".join((self._digest, self._head, text)).encode()).hexdigest()

    def functions(self, texts: Sequence[str]) -> list[Function]:
        """Compile what is missing, all at once, and load the rest.

        Raises:
            CodegenError: the compiler refused, or an object cannot be loaded.
        """
        keys = [self.key(text) for text in texts]
        with self._lock:
            ours = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._functions}
            self._functions.update((key, Future()) for key in ours)
            waiting = {key: self._functions[key] for key in keys}
        try:
            self._provide(ours)
        except BaseException as error:
            self._give_up(ours, error)
            raise
        return [waiting[key].result() for key in keys]

    def load(self, keys: Sequence[str]) -> list[Function] | None:
        """Functions from objects that are in the cache already; ``None`` if one is not."""
        found = []
        for key in keys:
            function = self._find(key)
            if function is None:
                return None
            found.append(function)
        return found

    def object_bytes(self, object_hash: str) -> bytes:
        """Content of an object."""
        return self._object_path(object_hash).read_bytes()

    def install(self, content: bytes, keys: Sequence[str]) -> None:
        """Put an object that was made elsewhere, and the functions it holds, into the cache.

        Raises:
            OSError: the folder cannot be written.
        """
        object_hash = hashlib.sha256(content).hexdigest()
        _write(self._object_path(object_hash), content)
        for key in keys:
            _write(self._reference_path(key), object_hash.encode())

    def _provide(self, texts: dict[str, str]) -> None:
        missing = {}
        for key, text in texts.items():
            function = self._find(key)
            if function is None:
                missing[key] = text
            else:
                self._functions[key].set_result(function)
        pieces = _pieces(missing)
        if len(pieces) <= 1:
            for piece in pieces:
                self._compile(piece)
            return
        with ThreadPoolExecutor(len(pieces), thread_name_prefix="mixbackend-cpp") as pool:
            for done in [pool.submit(self._compile, piece) for piece in pieces]:
                done.result()

    def _give_up(self, texts: dict[str, str], error: BaseException) -> None:
        """Forget what did not succeed, so that it is tried again, and tell the threads that wait."""
        with self._lock:
            for key in texts:
                if not self._functions[key].done():
                    self._functions.pop(key).set_exception(error)

    def _compile(self, texts: dict[str, str]) -> None:
        source = self._head + "\n".join(text.replace(PLACEHOLDER, symbol_of(key)) for key, text in texts.items())
        content = compile_object(source, self.toolchain)
        object_hash = hashlib.sha256(content).hexdigest()
        try:
            self.install(content, list(texts))
        except OSError as error:
            raise CodegenError(f"the folder of compiled kernels cannot be written: {error}") from error
        for key in texts:
            self._functions[key].set_result(self._load(key, object_hash))

    def _find(self, key: str) -> Function | None:
        """A function of the cache on disk, if all of it is there and whole."""
        try:
            object_hash = self._reference_path(key).read_text()
            if not _HASH.fullmatch(object_hash):
                return None
            return self._load(key, object_hash)
        except (OSError, UnicodeDecodeError, CodegenError, AttributeError):
            return None

    def _load(self, key: str, object_hash: str) -> Function:
        with self._lock:
            library = self._objects.get(object_hash)
            if library is None:
                library = self._objects[object_hash] = _open(self._object_path(object_hash), object_hash)
        address = ctypes.cast(getattr(library, symbol_of(key)), ctypes.c_void_p).value
        assert address is not None
        return Function(key, object_hash, address)

    def _object_path(self, object_hash: str) -> Path:
        return self.toolchain.folder / f"{object_hash}.so"

    def _reference_path(self, key: str) -> Path:
        return self.toolchain.folder / f"{key}.ref"


def compile_object(source: str, toolchain: Toolchain) -> bytes:
    """The shared object of a translation unit.

    Raises:
        CodegenError: with the text and the compiler's words.
    """
    with tempfile.TemporaryDirectory(prefix="mixbackend-") as folder:
        result = Path(folder) / "module.so"
        command = [*toolchain.compiler.command, *toolchain.flags, "-x", "c++", "-", "-o", str(result), "-lm"]
        try:
            answer = subprocess.run(
                command, input=source, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, cwd=folder
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CodegenError(f"the C++ compiler did not run: {error}") from error
        if answer.returncode != 0:
            raise CodegenError(
                f"{toolchain.compiler.version} refused generated code:\n{answer.stderr.strip()[:8000]}",
                where=f"the text\n{source}",
                hint="report it with this text; until then place these operators on another backend",
            )
        return result.read_bytes()


def _open(path: Path, object_hash: str) -> ctypes.CDLL:
    problem = distrust(path.parent, path)
    if problem:
        raise CodegenError(f"compiled kernels are not loaded: {problem}", hint="make the cache folder private")
    if hashlib.sha256(path.read_bytes()).hexdigest() != object_hash:
        path.unlink(missing_ok=True)
        raise CodegenError(f"{path} does not hold what its name says")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        found = _from_memory(path)
        if found is None:
            raise CodegenError(f"{path} cannot be loaded: {error}") from error
        return found


def _from_memory(path: Path) -> ctypes.CDLL | None:
    """The object in a file of memory: where containers mount what can be written, nothing can be run (noexec)."""
    if not hasattr(os, "memfd_create"):
        return None
    # The descriptor stays: a later object under its number would count as this one.
    descriptor = os.memfd_create("mixbackend-kernels", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(path.read_bytes())
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    except OSError:
        os.close(descriptor)
        return None


def _pieces(texts: dict[str, str]) -> list[dict[str, str]]:
    """Texts for compilers that run side by side, about equally much work."""
    count = min(len(texts), side_by_side(), _MOST_PIECES)
    pieces: list[dict[str, str]] = [{} for _ in range(count)]
    for key in sorted(texts, key=lambda key: (-_work(texts[key]), key)):
        least = min(pieces, key=lambda piece: sum(map(_work, piece.values())))
        least[key] = texts[key]
    return pieces


def _work(text: str) -> int:
    """Characters of printed kernels that take the compiler as long as this text does."""
    return len(text) + _TEMPLATE_CHARACTERS * text.count("#include")


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)

"""Functions without kernels: the little native code that the runtime needs, through the same compiler and cache.

Place: beside the C++ target; used where a call per microsecond must not go through Python.
Input: text of a function named ``build.PLACEHOLDER``. Output: its address.
"""

from __future__ import annotations

from functools import lru_cache

from mixbackend.backends.codegen.targets.cpp.build import FunctionLibrary, Toolchain
from mixbackend.backends.codegen.targets.cpp.features import machine_features
from mixbackend.backends.common.compiler import find_compiler
from mixbackend.backends.common.private_folder import private_cache_folder


@lru_cache(maxsize=16)
def plain_function(text: str) -> int:
    """Address of a function, compiled without threads and without our headers.

    Raises:
        NoCompilerError: there is no C++ compiler.
        CodegenError: it refused the text, or the object cannot be loaded.
        OSError: the cache's folder cannot be trusted or written.
    """
    return _library().functions([text])[0].address


@lru_cache(maxsize=1)
def _library() -> FunctionLibrary:
    compiler = find_compiler()
    folder = private_cache_folder("codegen-cpp")
    return FunctionLibrary(Toolchain(compiler, machine_features(compiler), False, folder), "")

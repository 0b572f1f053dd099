"""Whether kernels for GPUs can be made here: asked of every process, so that nothing else is loaded for it.

Place: below the Triton target. Output: the answer of ``Target.availability``.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util

import torch

from mixbackend.backends.common.compiler import NoCompilerError, find_compiler
from mixbackend.contracts import Availability


def triton_availability() -> Availability:
    """Whether there are Triton, a GPU, and a C++ compiler for the launcher."""
    if importlib.util.find_spec("triton") is None:
        return Availability(False, reason="Triton is not installed: pip install 'mixbackend[gpu]'")
    if not torch.cuda.is_available():
        return Availability(False, reason="torch sees no GPU")
    try:
        find_compiler()
    except NoCompilerError as error:
        return Availability(False, reason=str(error))
    return Availability(True, version=importlib.metadata.version("triton"))

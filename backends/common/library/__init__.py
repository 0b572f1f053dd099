"""Regions as straight lines of library calls: what backends of kernel libraries share."""

from mixbackend.backends.common.library.backend import Kernels, LibraryBackend
from mixbackend.backends.common.library.region import compile_region, without_work
from mixbackend.backends.common.library.rules import Library, MatchRule, OpRule
from mixbackend.backends.common.library.scope import Scope

__all__ = ["Kernels", "Library", "LibraryBackend", "MatchRule", "OpRule", "Scope", "compile_region", "without_work"]

"""Checkers of the intermediate representation, one per level.

Place: what the pipeline and tests import; each collects all problems and raises one ``IrError`` with excerpts.
"""

from mixbackend.backends.codegen.ir.check_kernels import check_kernel
from mixbackend.backends.codegen.ir.check_programs import check_program
from mixbackend.backends.codegen.ir.check_stages import check_stages

__all__ = ["check_kernel", "check_program", "check_stages"]

"""The loop-level intermediate representation. Importing any part of it registers the texts of all its values."""

import mixbackend.backends.codegen.ir.kernel_text  # noqa: F401

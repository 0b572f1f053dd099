"""A pytest plug-in that makes a backend the default of ``torch.compile``, for suites that name none.

Place: loaded by ``suites`` through ``PYTEST_PLUGINS``. ``MIXBACKEND_CONFORMANCE`` says which: ``auto``, or a name that
torch knows.
"""

from __future__ import annotations

import os

import torch

import mixbackend

VARIABLE = "MIXBACKEND_CONFORMANCE"

_name = os.environ.get(VARIABLE, "auto")
torch.compiler.set_default_backend(mixbackend.auto() if _name == "auto" else _name)

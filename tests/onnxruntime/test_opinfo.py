"""torch's own operator samples: whatever is claimed must be right."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC2701
from torch.utils import _pytree as pytree

from mixbackend.contracts import OpNode, TensorMeta, Unsupported
from mixbackend.runtime.trace import trace_graph

"""Makes torchvision importable beside a CPU build of torch.

Place: called before anything imports torchvision (timm does at its own import, transformers for some models).
Why: the wheel of torchvision on PyPI is a CUDA build. Beside a CPU torch its native library does not load, and
``import torchvision`` then dies because the schemas of two operators are missing. Defining the schemas first is enough
for models and transforms; box suppression gets a plain implementation, ROI-align the Python one torchvision has.
Invariants: where torchvision's native library loads, nothing is replaced.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

_SCHEMAS = tuple(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms"))


@cache
def enable_torchvision() -> torch.library.Library | None:
    """Define what the import needs. Returns the library that holds the schemas: they live as long as it does."""
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is None:
        return None
    if _native_library_loads():
        return None
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    library.impl("nms", _suppress_boxes, "CPU")
    _use_python_kernels()
    return library


def _native_library_loads() -> bool:
    """Try it: schemas that torch and the library both define would end the process, not raise."""
    spec = importlib.util.find_spec("torchvision")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for path in (path for folder in folders for path in Path(folder).glob("_C*.so")):
        try:
            torch.ops.load_library(path)
        except OSError:
            return False
        return True
    return False


def _use_python_kernels() -> None:
    extension = importlib.import_module("torchvision.extension")
    if extension._has_ops():
        return
    boxes: Any = importlib.import_module("torchvision.ops.boxes")
    roi_align: Any = importlib.import_module("torchvision.ops.roi_align")
    boxes._assert_has_ops = lambda: None
    # The Python fallback is wrapped to compile itself with inductor, which would hide it from the backend under test.
    roi_align._roi_align = roi_align._roi_align.__wrapped__


def _suppress_boxes(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
    """Greedy non-maximum suppression: indices of the kept boxes, best score first."""
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    alive = torch.ones(len(boxes), dtype=torch.bool)
    kept: list[int] = []
    for index in scores.argsort(descending=True, stable=True).tolist():
        if not alive[index]:
            continue
        kept.append(index)
        low = torch.maximum(boxes[index, :2], boxes[:, :2])
        high = torch.minimum(boxes[index, 2:], boxes[:, 2:])
        overlap = (high - low).clamp(min=0).prod(1)
        alive &= overlap / (area[index] + area - overlap) <= threshold
    return torch.tensor(kept, dtype=torch.long)

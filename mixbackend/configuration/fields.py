"""Types of single values, and the base of all models.

Place: below ``rules`` and ``model``.
Invariants: scalars are strict (``"3"`` is not a number, ``1`` is not a flag); models are frozen, refuse unknown keys,
and are compared and hashed by their fields alone, so that where a value was written does not matter.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError, core_schema

from mixbackend.nearest_name import did_you_mean

Text = Annotated[str, Field(strict=True, min_length=1)]
Positive = Annotated[float, Field(strict=True, gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0.0, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=1)]


class FrozenModel(BaseModel):
    """Base of every part of a configuration; what stands below a field describes it, see ``schema``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), tuple(self.__dict__.values())))


def dtype_names() -> tuple[str, ...]:
    """Canonical names of torch's dtypes: ``float16``, not ``half``."""
    found = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return tuple(sorted(str(dtype).removeprefix("torch.") for dtype in found))


def _check_dtype(name: str) -> str:
    names = dtype_names()
    if name in names:
        return name
    known = getattr(torch, name.removeprefix("torch."), None)
    canonical = str(known).removeprefix("torch.")
    hint = f"write {canonical!r}" if isinstance(known, torch.dtype) else did_you_mean(name, names)
    raise PydanticCustomError("dtype", "{name} is not a dtype; {hint}", {"name": repr(name), "hint": hint})


def _check_device(name: str) -> str:
    try:
        device = torch.device(name)
    except RuntimeError:
        message = "{name} is not a device type; write 'cpu', 'cuda' or another that torch knows"
        raise PydanticCustomError("device", message, {"name": repr(name)}) from None
    if device.index is None:
        return name
    message = "{name} names one device; rules are about device types: write {type}"
    raise PydanticCustomError("device", message, {"name": repr(name), "type": repr(device.type)})


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _mapping_as_pairs(_source: object, handler: Any) -> core_schema.CoreSchema:
    mapping = handler(dict[str, Count])
    return core_schema.no_info_after_validator_function(lambda value: tuple(sorted(value.items())), mapping)


DtypeName = Annotated[str, Field(strict=True), AfterValidator(_check_dtype)]
DtypeNames = Annotated[
    tuple[DtypeName, ...],
    BeforeValidator(_as_tuple),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "enum": list(dtype_names())},
                {"type": "array", "items": {"type": "string", "enum": list(dtype_names())}},
            ]
        }
    ),
]
DeviceType = Annotated[str, Field(strict=True), AfterValidator(_check_device)]

CountByName = Annotated[
    tuple[tuple[str, int], ...],
    GetPydanticSchema(_mapping_as_pairs),
    PlainSerializer(dict, return_type=dict[str, int]),
]
"""A mapping from names to counts, kept as sorted pairs so that it can be hashed."""

"""Tables of rates without this machine: what a machine of its family would have that was not measured.

Place: below ``first_plans``. Input: a device type. Output: while inside, the family's table without this product.
A family that has no other machine is filled from its neighbours, those with the most similar kernels.
Invariants: the environment is as it was afterwards; graphs that are planned inside read this table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mixbackend.cost.families import Family, family_of
from mixbackend.cost.rate_tables import TABLES, Machine, table_text, tables_of
from mixbackend.host.devices import device_name

NEIGHBOURS: Mapping[Family, tuple[Family, ...]] = {
    "avx512": ("amx", "avx2"),
    "amx": ("avx512", "avx2"),
    "avx2": ("avx512", "amx"),
    "aarch64": ("avx2",),
    "h100": ("h200", "a100"),
    "h200": ("h100", "a100"),
    "a100": ("h100", "h200"),
    "rtx4090": ("a100", "h100"),
}


def other_machines(device_type: str, keep_own: bool = False) -> tuple[Machine, ...]:
    """The machines that a first plan goes by.

    Args:
        device_type: ``cpu`` or ``cuda``.
        keep_own: leave this product among them.
    """
    name = device_name(device_type)
    family = family_of(name)
    for one in (family, *NEIGHBOURS[family]):
        kept = tuple(item for item in tables_of(one) if keep_own or item.product != name.partition(" ")[2])
        if kept:
            return kept
    return ()


@contextmanager
def other_table(folder: Path, device_type: str, keep_own: bool = False) -> Iterator[None]:
    """See the module's docstring; the table is written into a new folder."""
    family, before = family_of(device_name(device_type)), os.environ.get(TABLES)
    text = table_text(family, other_machines(device_type, keep_own))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{family}.json").write_text(text)
    os.environ[TABLES] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[TABLES]
        else:
            os.environ[TABLES] = before

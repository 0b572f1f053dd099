"""The look at this machine, once for each number of threads and cores: kept in the database.

Place: above ``look`` and ``model``; asked by a session's costs. Input: a device type, dtypes of a graph, the database.
Output: ``Look``, or none where looking is forbidden or would break what the user records.
Invariants: a dtype is looked at once, by one process; a look that other programs disturbed is taken again half an hour
later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

import torch

from mixbackend.cost.look import DTYPES, Look, look_at, usable_cores
from mixbackend.cost.look_rows import is_due
from mixbackend.cost.model import device_subject, table_here
from mixbackend.cost.switches import measuring_is_allowed
from mixbackend.host.devices import device_name
from mixbackend.storage import Database
from mixbackend.storage.validity import SEPARATOR

_logger = logging.getLogger("mixbackend")


def look_here(device_type: str, dtypes: Iterable[str], database: Database) -> Look | None:
    """The look at this machine: kept, or taken now.

    Args:
        device_type: ``cpu`` or ``cuda``.
        dtypes: that products are needed of; others than ``DTYPES`` do not count.
        database: where looks are kept.
    """
    subject = SEPARATOR.join((device_subject(device_name(device_type)), f"cores {usable_cores():g}"))
    wanted = {"float32", *(dtype for dtype in dtypes if dtype in DTYPES)}
    known = _kept(database, subject)
    if (known is not None and known.products.keys() >= wanted) or not measuring_is_allowed():
        return known
    if device_type != "cpu" and torch.cuda.is_current_stream_capturing():
        return known
    # Processes that start together plan by one look.
    with database.alone("look"):
        known = _kept(database, subject)
        missing = wanted.difference(known.products if known is not None else ())
        if known is not None and not missing:
            return known
        try:
            seen = look_at(device_type, sorted(missing))
        except RuntimeError as error:
            _logger.warning("no look at %s, plans go by priors: %s", device_type, error)
            return known
        look = seen if known is None else known.with_products(seen)
        table = table_here(device_type, look)
        row = {"settled": table is None or table.settled, "at": time.time(), **look.record()}
        database.set_rates("look", subject, {"device": device_name(device_type), **row})
        return look


def _kept(database: Database, subject: str) -> Look | None:
    """The look of an earlier process; one that was disturbed counts for a while."""
    row = database.rates("look", subject)
    try:
        if row is None or is_due(row):
            return None
        return Look.read(row)
    except (KeyError, TypeError, ValueError):
        return None

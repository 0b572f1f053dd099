"""Costs at first use: a session's costs are made, and what they need is loaded, when something is priced.

Place: between ``compile.open_environment`` and the planner. Input: what costs are made of. Output: ``SessionCosts``,
one for all callers. A process that has all plans from the database prices nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mixbackend.configuration import Config
from mixbackend.contracts import Backend
from mixbackend.storage import Storage

if TYPE_CHECKING:
    from mixbackend.cost.costs import SessionCosts


@dataclass(frozen=True)
class CostsAtFirstUse:
    """See the module's docstring; the attributes are those of ``SessionCosts``."""

    config: Config
    backends: tuple[Backend, ...]
    storage: Storage
    records: bool

    @cached_property
    def costs(self) -> SessionCosts:
        """Of graphs."""
        from mixbackend.cost.costs import SessionCosts

        return SessionCosts(self.config, self.backends, self.storage, self.records)

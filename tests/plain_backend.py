"""What most backends of tests have in common: they are there, and take every op that is nothing special.

It imports the contract alone: processes that tests start load it too.
"""

from __future__ import annotations

from typing import ClassVar

from mixbackend.contracts import Availability, Backend, OpView, Supported, Traits, Verdict, refuse_special


class PlainBackend(Backend):
    """Answers everything but ``compile``."""

    contract_version: ClassVar[str] = "1.0"

    def availability(self) -> Availability:
        return Availability(True, version="1")

    def fingerprint(self) -> str:
        return f"{self.name} 1"

    def traits(self) -> Traits:
        return Traits()

    def judge(self, view: OpView) -> Verdict:
        return refuse_special(view) or Supported()

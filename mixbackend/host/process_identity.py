"""What tells this process from others.

Place: read where processes are counted. Those that were forked from this one count as it.
"""

from __future__ import annotations

import secrets

from mixbackend.host.process_facts import process_fact


@process_fact
def process_identity() -> str:
    """A word that no other process has."""
    return secrets.token_hex(8)


# Asked before anything is forked.
process_identity()

"""The version of the backend contract.

Place: read by every backend at definition time and by the registry at registration time.
Invariants: the major number rises when a backend that was correct before could become wrong or stop loading; the
minor number rises when something optional is added.
"""

from __future__ import annotations

from mixbackend.contracts.errors import ContractVersionError

CONTRACT_VERSION = "1.1"
"""``major.minor`` of the contract described by this package."""


def check_contract_version(backend_name: str, built_for: object) -> None:
    """Refuse a backend that was built for an incompatible contract.

    A backend is compatible if it was built for the same major version and for a minor version not newer than ours.

    Raises:
        ContractVersionError: names the backend, the version it was built for, and ours.
    """
    ours = _parse(CONTRACT_VERSION)
    theirs = _parse(built_for)
    if theirs is None or ours is None or theirs[0] != ours[0] or theirs[1] > ours[1]:
        raise ContractVersionError(
            what=f"backend {backend_name!r} was built for contract {built_for!r}; this mixbackend has contract "
            f"{CONTRACT_VERSION!r}",
            hint="install a release of the backend built for this contract, or a mixbackend that matches it",
        )


def _parse(version: object) -> tuple[int, int] | None:
    if not isinstance(version, str):
        return None
    parts = version.split(".")
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        return None
    return int(parts[0]), int(parts[1])

"""Errors of the whole system: what happened, where, and what to do.

Place: the bottom; everything may raise these. Foreign exceptions are wrapped once, at the border where they enter.
Invariants: every error class has a stable ``code``; ``docs/reference/errors.md`` has one heading per code and a
test holds the two equal.
"""

from __future__ import annotations


class MixbackendError(Exception):
    """Base of all errors raised on purpose by mixbackend.

    Args:
        what: what happened, one sentence.
        where: the place in the user's terms: region, op, source line, file and line of a configuration.
        hint: what to do about it.
    """

    code = "error"

    def __init__(self, what: str, where: str = "", hint: str = "") -> None:
        self.what = what
        self.where = where
        self.hint = hint
        lines = [f"[{self.code}] {what}"]
        if where:
            lines.append(f"  where: {where}")
        if hint:
            lines.append(f"  what to do: {hint}")
        super().__init__("\n".join(lines))


class ContractVersionError(MixbackendError):
    """A backend was built for an incompatible contract version."""

    code = "contract-version"


class ContractError(MixbackendError):
    """A backend object, or an answer of a backend, does not have the form the contract asks for."""

    code = "contract"


class ConfigurationError(MixbackendError):
    """A configuration is wrong; ``what`` lists every problem with file, line and column."""

    code = "configuration"


class UnknownBackendError(MixbackendError):
    """A backend was named that is not registered."""

    code = "unknown-backend"


class BackendUnavailableError(MixbackendError):
    """A backend that the user required cannot be used here."""

    code = "backend-unavailable"


class PlacementError(MixbackendError):
    """No placement satisfies the requirements, or a plan is not legal for its graph."""

    code = "placement"


class RegionCompileError(MixbackendError):
    """A backend failed to compile a region that it had claimed."""

    code = "region-compile"


class QuarantinedError(MixbackendError):
    """A backend failed on this region before; it is not tried again until the backend's fingerprint changes."""

    code = "quarantined"


class RegionRunError(MixbackendError):
    """A compiled region raised while running."""

    code = "region-run"


class InputRangeError(MixbackendError):
    """An input of a region has a value for which eager raises: an index or label out of range, a zero divisor."""

    code = "input-range"


class VerificationError(MixbackendError):
    """A region's result is farther from the float64 reference than its error budget allows."""

    code = "verification"


class RegionTextError(MixbackendError):
    """A canonical region text cannot be read back."""

    code = "region-text"


class LoweringError(MixbackendError):
    """An op cannot be written in the operators of a lower level."""

    code = "lowering"


class StorageError(MixbackendError):
    """The artifact store or the measurement database cannot be used."""

    code = "storage"


class RateTableError(MixbackendError):
    """A file of rates (``mixbackend calibrate --export``) does not fit its format."""

    code = "rate-table"


class LockError(MixbackendError):
    """A lock file cannot be read, or what it says does not hold here; ``what`` lists every difference."""

    code = "lock"


class PackageError(MixbackendError):
    """A program cannot be exported, or a package cannot be read, or does not fit what is here."""

    code = "package"


class PackageInputError(MixbackendError):
    """A call of a package's program has other arguments than it was exported for; ``what`` lists every difference."""

    code = "package-input"


class IrError(MixbackendError):
    """The code generator made a loop-level program that breaks its own rules; ``what`` lists every problem."""

    code = "codegen-ir"


class CodegenError(MixbackendError):
    """A target of the code generator could not compile a kernel; has the kernel's text and the compiler's words."""

    code = "codegen-compile"

"""Records of operator samples, added up.

Place: between the results file and what tells of it: the command, the page.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mixbackend.benchmarks.results import Record

_COUNTED = ("right", "stated", "random", "refused", "wrong", "compiled")


@dataclass(frozen=True, slots=True)
class OperatorTally:
    """Operator samples of one element type.

    Attributes:
        dtype: the element type.
        operators: with at least one sample.
        complete: operators of which no sample is left.
        right, stated, random, wrong, compiled: samples; those of ``stated`` are right with strides that torch's fake
            kernels state and eager has not, those of ``random`` are held to shapes and types alone.
        refused: what eager itself refuses, no samples.
        ours: wrong ones that the control has right, each with its problem.
        shared: wrong ones that the control has wrong as well.
        repaired: what the check at run time found and replaced.
        processor_s: time of all processors.
    """

    dtype: str
    operators: int
    complete: int
    right: int
    stated: int
    random: int
    refused: int
    wrong: int
    compiled: int
    ours: tuple[str, ...]
    shared: tuple[str, ...]
    repaired: tuple[str, ...]
    processor_s: float

    @property
    def samples(self) -> int:
        """All that eager runs."""
        return self.right + self.stated + self.random + self.wrong

    def __str__(self) -> str:
        lines = [
            f"{self.dtype}: {self.samples} samples of {self.operators} operators ({self.complete} whole), "
            f"{self.compiled} compiled, {self.stated} with stated strides, {self.random} random, "
            f"{self.refused} refused by eager; "
            f"wrong: {len(self.ours)}, and {len(self.shared)} as in aot_eager; repaired: {len(self.repaired)}; "
            f"{self.processor_s:.0f} s"
        ]
        for title, items in (("wrong", self.ours), ("as in aot_eager", self.shared), ("repaired", self.repaired)):
            lines += [f"  {title}: {item}" for item in items]
        return "\n".join(lines)


def tally_of(records: Iterable[Record], label: str, dtype: str) -> OperatorTally:
    """The sum over the records of a label and a type."""
    mine = [record for record in records if record["label"] == label and record["dtype"] == dtype]
    sums = {name: sum(record["tally"].get(name, 0) for record in mine) for name in _COUNTED}
    wrong = [item for record in mine for item in record["wrong"]]
    seen = {record["operator"] for record in mine if sum(record["tally"].values())}
    # Where a process died, single samples follow: the operator is whole when its last piece says so.
    last = {
        record["operator"]: record["more"] for record in sorted(mine, key=lambda item: (item["first"], -item["count"]))
    }
    return OperatorTally(
        dtype=dtype,
        operators=len(seen),
        complete=sum(not more for more in last.values()),
        ours=tuple(f"{item['sample']}: {item['problem']}" for item in wrong if item["control"] in ("right", "not run")),
        shared=tuple(
            f"{item['sample']}: {item['problem']}" for item in wrong if item["control"] not in ("right", "not run")
        ),
        repaired=tuple(item for record in mine for item in record["repaired"]),
        processor_s=sum(record.get("processor_s", 0.0) for record in mine),
        **sums,
    )

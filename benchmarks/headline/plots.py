"""The headline table as a picture: every model's speed over eager, ours and inductor's, sorted.

Place: beside ``page``. Input: records. Output: an SVG file, equal for equal records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from mixbackend.benchmarks.headline.cases import SETS
from mixbackend.benchmarks.headline.summary import INDUCTOR, OURS, Line, line_of
from mixbackend.benchmarks.peers.comparing import geometric_mean
from mixbackend.benchmarks.row_records import Part

_SIDES = (("inductor", INDUCTOR, "#9aa5b1"), ("mixbackend", OURS, "#d9480f"))
_FACTORS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def plot(records: Iterable[Part], path: Path) -> None:
    """Draw one panel for each group that has cases, each side in its best mode."""
    lines = [line_of(record) for record in records]
    groups = {name: whole for name in SETS if (whole := [line for line in lines if _whole(line, name)])}
    with rc_context({"svg.hashsalt": "headline", "font.size": 9.0}):
        figure = Figure(figsize=(3.4 * max(len(groups), 1), 2.9), layout="constrained")
        panels = figure.subplots(1, max(len(groups), 1), squeeze=False, sharey=True)[0]
        for panel, (name, whole) in zip(panels, groups.items(), strict=False):
            _draw(panel, name, whole)
        panels[0].set_ylabel("times as fast as eager")
        figure.savefig(path, format="svg", metadata={"Date": None})


def _whole(line: Line, group: str) -> bool:
    return line.group == group and all(line.gain(ways, ("eager",)) for _, ways, _ in _SIDES)


def _draw(panel: Axes, name: str, lines: Sequence[Line]) -> None:
    for label, ways, colour in _SIDES:
        gains = sorted(gain for line in lines if (gain := line.gain(ways, ("eager",))))
        shares = [100.0 * (place + 0.5) / len(gains) for place in range(len(gains))]
        panel.plot(shares, gains, color=colour, linewidth=1.8, label=f"{label} {geometric_mean(gains):.2f}")
    panel.axhline(1.0, color="#555555", linewidth=0.7, linestyle=":")
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_locator(FixedLocator(_FACTORS))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.set_title(f"{name.replace('-', ', ')}: {len(lines)} models", fontsize=9.0)
    panel.set_xlabel("share of models, percent")
    panel.legend(frameon=False, title="geometric mean", loc="upper left")

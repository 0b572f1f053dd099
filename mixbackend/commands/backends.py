"""``mixbackend backends``: which are registered, which can be used here, and why not."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from mixbackend import registry
from mixbackend.commands.output import console, print_json, quiet_stdout


def run(as_json: bool) -> None:
    """List every registered backend."""
    with quiet_stdout():
        infos = registry.backends()
    if as_json:
        print_json([info.to_dict() for info in infos])
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("backend", "usable", "version", "contract", "from", "why not"):
        table.add_column(heading, overflow="fold")
    for info in infos:
        usable = Text("yes", "green") if info.available else Text("no", "red")
        table.add_row(
            Text(info.name), usable, *map(Text, (info.version, info.contract_version, info.origin, info.reason))
        )
    console().print(table)

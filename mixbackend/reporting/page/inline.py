"""One HTML file of the page's data, its scripts and the libraries they draw with.

Place: last of the page. Input: what ``data`` gives. Output: text that refers to nothing outside of itself.
The libraries (Cytoscape.js with dagre, D3, d3-flame-graph) are in ``libraries`` as npm has them; see
``.ci/page_libraries``.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

_LIBRARIES = ("cytoscape", "cytoscape-dagre", "d3", "d3-flame-graph")
_SCRIPTS = ("shared.js", "graph.js", "times.js", "tables.js", "main.js")


def page(data: Mapping[str, Any]) -> str:
    """The whole file.

    Args:
        data: see ``page_data``.
    """
    folder = files(__package__)
    library = folder.joinpath("libraries")
    libraries = [library.joinpath(f"{name}.min.js").read_text(encoding="utf-8") for name in _LIBRARIES]
    scripts = [folder.joinpath(name).read_text(encoding="utf-8") for name in _SCRIPTS]
    parts = {
        "TITLE": html.escape(data["title"]),
        "STYLE": folder.joinpath("page.css").read_text(encoding="utf-8"),
        "DATA": _embedded(data),
        "SCRIPTS": "\n".join(f"<script>{text}</script>" for text in (*libraries, *scripts)),
    }
    text = folder.joinpath("page.html").read_text(encoding="utf-8")
    # One pass over the frame: what is put in is never looked at again.
    pieces = text.split("@@")
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON that ends no element of HTML, whatever names models and backends have."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")

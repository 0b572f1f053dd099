"""The version of mixbackend, readable without importing anything else of it."""

from __future__ import annotations

VERSION = "0.1.0"

"""Finds the packages under the folders of ``[tool.setuptools.package-dir]``: setuptools' own search knows one root.

Of the benchmarks the wheel holds what the command line runs on: the models, and how one of them is judged and timed. In
an editable install all of them import, since whole folders are mapped.
"""

import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

if sys.version_info >= (3, 11):
    import tomllib
else:
    from setuptools.compat.py310 import tomllib

ROOT = Path(__file__).parent
BENCHMARKS = "mixbackend.benchmarks"
SHIPPED_BENCHMARKS = (f"{BENCHMARKS}.models", f"{BENCHMARKS}.one_model")


def is_shipped(package: str) -> bool:
    """Whether the wheel holds a package."""
    within = any(f"{package}.".startswith(f"{shipped}.") for shipped in SHIPPED_BENCHMARKS)
    return within or not package.startswith(f"{BENCHMARKS}.")


def packages() -> list[str]:
    """Every package of the mapped folders that the wheel holds, and the folders that are named for their data."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    found = [
        name
        for package, folder in settings["package-dir"].items()
        for name in (package, *(f"{package}.{inner}" for inner in find_packages(str(ROOT / folder))))
    ]
    data = [name for name in settings["package-data"] if name not in ("*", *found)]
    return [name for name in found if is_shipped(name)] + data


class BuildShipped(build_py):
    """Leaves out the modules that stand directly in the folder of benchmarks."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found = super().find_package_modules(package, package_dir)
        return [item for item in found if package != BENCHMARKS or item[1] == "__init__"]


setup(packages=packages(), cmdclass={"build_py": BuildShipped})

"""``mixbackend config check|schema``: is a configuration right, and what may be in one."""

from __future__ import annotations

import json
import sys

from mixbackend import registry
from mixbackend.commands.output import print_json, quiet_stdout
from mixbackend.configuration import Config, ConfigurationProblemsError, json_schema, load_config


def check(file: str, as_json: bool) -> int:
    """Report all problems of a file; 0 if there are none, else 1."""
    try:
        config = load_config(file)
    except ConfigurationProblemsError as error:
        if not as_json:
            raise
        print_json({"ok": False, "problems": [problem.to_dict() for problem in error.problems], "warnings": []})
        return 1
    warnings = _unusable(config)
    if as_json:
        content = config.model_dump(mode="json")
        print_json({"ok": True, "problems": [], "warnings": warnings, "configuration": content})
        return 0
    for warning in warnings:
        print(f"{file}: warning: {warning}", file=sys.stderr)
    rules = len(config.rules)
    print(f"{file}: ok ({rules} rule{'' if rules == 1 else 's'})")
    return 0


def schema() -> None:
    """Print the JSON Schema of the YAML file."""
    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")


def _unusable(config: Config) -> list[str]:
    """Backends that the file names but that cannot be used on this machine: right there, perhaps wrong elsewhere."""
    named = {*(config.backends or ()), *config.required_backends()}
    with quiet_stdout():
        infos = registry.skipped(sorted(named))
    return [f"backend {info.name!r} cannot be used on this machine: {info.reason}" for info in infos]

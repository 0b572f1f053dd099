"""``mixbackend cache why KEY``: field by field, what keeps a stored entry from being used by this process.

Input: the beginning of a key, and perhaps a model. Without a model, graphs are not compared: nothing is compiled. With
one, it is compiled into an empty folder: what lands there is what this process asks for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from mixbackend.api import compiled_once
from mixbackend.commands.cache import Cache, as_table, open_cache
from mixbackend.commands.explain import load_model
from mixbackend.commands.output import console, print_json, quiet_stdout
from mixbackend.compile.open_environment import open_environment
from mixbackend.configuration import Config
from mixbackend.contracts import CONTRACT_VERSION, StorageError
from mixbackend.plan.environment import Environment
from mixbackend.select.tuner import asked_here
from mixbackend.storage import ArtifactStore, Database
from mixbackend.storage.why import FORM, GRAPH_FIELDS, Stored, Why, flat, nearest, stored_entries, why_not

_MOST_SHOWN = 20


def run(key: str, config: str | None, dir: str | None, model: str | None, train: bool, as_json: bool) -> None:
    """Explain the entries with keys that begin so.

    Args:
        key: the beginning of a key; ``""`` for all entries.
        config, dir: see ``mixbackend cache info``.
        model: as of ``mixbackend explain``.
        train: whether the model is asked for in training.
    """
    cache = open_cache(config, dir)
    found = list(stored_entries(cache.database, cache.store, key))
    if key and not found:
        raise StorageError(f"no artifact, plan or decision in {cache.folder} has a key that begins with {key!r}")
    answers = []
    if found:
        with quiet_stdout():
            ask = _of_process(cache) if model is None else _of_model(model, train, cache)
        answers = [why_not(entry, ask(entry)) for entry in found]
    if as_json:
        print_json({"folder": str(cache.folder), "entries": [answer.to_dict() for answer in answers]})
        return
    if not answers:
        print(f"nothing is remembered in {cache.folder}")
    for answer in answers[:_MOST_SHOWN]:
        _print(answer)
    if len(answers) > _MOST_SHOWN:
        print(f"{len(answers) - _MOST_SHOWN} more; --json shows all")


Ask = Callable[[Stored], Mapping[str, str]]


def _of_process(cache: Cache) -> Ask:
    environment = open_environment(_placed_in(cache.config, cache.folder))

    def ask(entry: Stored) -> Mapping[str, str]:
        device = _device_like(entry.fields.get("device", ""), cache.machine.devices)
        if entry.kind == "artifact":
            backend = entry.fields.get("backend", "")
            fingerprint = environment.fingerprints.get(backend, f"(backend {backend} is not here)")
            return {
                "backend": backend,
                "fingerprint": fingerprint,
                "device": device,
                "contract": CONTRACT_VERSION,
                "form": FORM,
            }
        return flat(_asked_of_graphs(entry.kind, environment, device))

    return ask


def _asked_of_graphs(kind: str, environment: Environment, device: str) -> Mapping[str, object]:
    stored = environment.planner.stored
    if kind == "plan" and stored is not None:
        return stored.asked_here(device.partition(" ")[0].partition(":")[0])
    return asked_here(environment, device)


def _of_model(name: str, train: bool, cache: Cache) -> Ask:
    with tempfile.TemporaryDirectory() as folder:
        database, empty = Database.open(folder), cache.config.with_options({"cache.remote": None})
        for row in cache.database.rows("rates"):  # plans depend on them
            database.take("rates", row)
        module, args, kwargs = load_model(name, train, "cpu")
        with torch.set_grad_enabled(train):
            compiled_once(module, args, kwargs, _placed_in(empty, Path(folder)))
        asked = list(stored_entries(database, ArtifactStore.open(folder)))
    return lambda entry: getattr(nearest(entry, asked), "fields", {})


def _placed_in(config: Config, folder: Path) -> Config:
    return config.with_options({"cache.dir": str(folder)})


def _device_like(stored: str, devices: tuple[str, ...]) -> str:
    """Of this machine's devices, the stored one, or one of its kind."""
    kind = stored.partition(" ")[0]
    return stored if stored in devices else next((item for item in devices if item.startswith(kind)), "(none)")


def _print(answer: Why) -> None:
    entry, backend = answer.entry, answer.entry.fields.get("backend", "")
    print(f"{entry.kind} {entry.key}" + (f" of {backend}" if backend else ""))
    if answer.differs:
        rows = [(item.field, item.stored, item.here) for item in answer.differs]
        console().print(as_table(("differs", "stored", "this process asks for"), rows))
    else:
        print("  nothing that can be compared differs")
    for what, names in (("the same", answer.same), ("not compared", answer.unknown)):
        if names:
            print(f"  {what}: {', '.join(names)}")
    if GRAPH_FIELDS & set(answer.unknown):
        print("  --model NAME compares with what that model asks for, its graphs included")

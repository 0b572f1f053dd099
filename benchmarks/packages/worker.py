"""One process: makes the files of a peer for a model, or runs the peer from them until its first result.

Place: started by ``measure``. Input: ``make|start PEER MODEL FOLDER``. Output: a line of JSON.
A peer that starts loads what it needs and nothing else: packages and ONNX Runtime have no model code, AOTInductor has
the classes of results where it asks for them, torch.compile all of it; that finds its caches filled.
Units: seconds, bytes; ``first_at`` is the time of day.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PEERS = ("mixbackend", "torch.compile", "aotinductor", "onnxruntime")
_FILES = {"mixbackend": "model.mix", "aotinductor": "model.pt2", "onnxruntime": "model.onnx"}
CALLS = 10


def main(arguments: Sequence[str]) -> int:
    """Run one process."""
    action, peer, model, folder = arguments
    told = _make(peer, model, Path(folder)) if action == "make" else _start(peer, model, Path(folder))
    print(json.dumps(told))
    return 0


# --- making ----------------------------------------------------------------------------------------------------------


def _make(peer: str, model: str, folder: Path) -> dict[str, Any]:
    import torch

    from mixbackend.benchmarks.models.trees import map_tensors, tensors_in
    from mixbackend.benchmarks.packages.cases import case_of

    begin = time.perf_counter()
    program, (module, args, kwargs) = case_of(model).program()
    traced_s = time.perf_counter() - begin
    file = folder / _FILES.get(peer, "nothing")
    if peer == "mixbackend":
        import mixbackend

        # As what is deployed is made: plans race on a machine that does nothing else.
        report = mixbackend.export(program, file, config={"search": {"mode": "measure"}})
        backends = {region.backend: None for graph in report.graphs for region in graph.plan.regions}
    elif peer == "aotinductor":
        from mixbackend.contracts.torch_compat import aoti_packaged

        aoti_packaged(program, str(file))
    elif peer == "onnxruntime":
        torch.onnx.export(program, (), str(file), dynamo=True, external_data=True)
    made_s = time.perf_counter() - begin - traced_s
    if not (folder / "values.pt").exists():
        with torch.no_grad():
            eager = list(tensors_in(module(*args, **kwargs)))
            exact = list(tensors_in(module.double()(*map_tensors(_double, args), **map_tensors(_double, kwargs))))
        values = {"args": list(args), "kwargs": dict(kwargs), "eager": eager, "exact": exact}
        torch.save(values, folder / "values.pt")
    size = sum(path.stat().st_size for path in folder.glob(f"{file.name}*"))
    return {
        "traced_s": traced_s,
        "made_s": made_s,
        "bytes": size,
        "backends": list(backends) if peer == "mixbackend" else [],
    }


def _double(value: Any) -> Any:
    return value.double() if value.is_floating_point() else value


# --- starting --------------------------------------------------------------------------------------------------------


def _start(peer: str, model: str, folder: Path) -> dict[str, Any]:
    begin = time.perf_counter()
    import torch

    values = torch.load(folder / "values.pt")  # plain tensors in lists and dictionaries
    imported_s = time.perf_counter() - begin
    begin = time.perf_counter()
    run = _RUNS[peer](model, folder, values)
    loaded_s = time.perf_counter() - begin
    begin = time.perf_counter()
    results = run()
    first_s, first_at = time.perf_counter() - begin, time.time()
    begin = time.perf_counter()
    for _ in range(CALLS):
        run()
    later_s = (time.perf_counter() - begin) / CALLS
    told = {
        "first_at": first_at,
        "imported_s": imported_s,
        "loaded_s": loaded_s,
        "first_s": first_s,
        "later_s": later_s,
    }
    return {**told, "error": _error(results, values), "modules": _model_code()}


def _packaged(model: str, folder: Path, values: dict[str, Any]) -> Callable[[], Any]:
    import mixbackend

    program = mixbackend.load(folder / _FILES["mixbackend"])
    return lambda: program(*values["args"], **values["kwargs"])


def _compiled(model: str, folder: Path, values: dict[str, Any]) -> Callable[[], Any]:
    import torch

    from mixbackend.benchmarks.packages.cases import case_of

    case = case_of(model)
    module, args, kwargs = case.load()
    compiled = torch.compile(module, dynamic=True if case.dynamic else None)

    def run() -> Any:
        with torch.no_grad():
            return compiled(*args, **kwargs)

    return run


def _aotinductor(model: str, folder: Path, values: dict[str, Any]) -> Callable[[], Any]:
    from mixbackend.contracts.torch_compat import aoti_loaded

    program = aoti_loaded(str(folder / _FILES["aotinductor"]))

    def run() -> Any:
        try:
            return program(*values["args"], **values["kwargs"])
        except NotImplementedError:
            import transformers.modeling_outputs  # noqa: F401  (its classes of results must be there)

            return program(*values["args"], **values["kwargs"])

    return run


def _onnxruntime(model: str, folder: Path, values: dict[str, Any]) -> Callable[[], Any]:
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(folder / _FILES["onnxruntime"]), options)
    given = [item for item in (*values["args"], *values["kwargs"].values()) if isinstance(item, torch.Tensor)]
    names = [item.name for item in session.get_inputs()]

    def run() -> list[torch.Tensor]:
        feed = {name: value.numpy() for name, value in zip(names, given, strict=True)}
        return [torch.from_numpy(item) for item in session.run(None, feed)]

    return run


_RUNS: dict[str, Callable[[str, Path, dict[str, Any]], Callable[[], Any]]] = {
    "mixbackend": _packaged,
    "torch.compile": _compiled,
    "aotinductor": _aotinductor,
    "onnxruntime": _onnxruntime,
}


def _error(results: Any, values: dict[str, Any]) -> float:
    """Root mean square distance from float64, as a multiple of eager's; the largest of all results."""
    from mixbackend.benchmarks.models.trees import tensors_in
    from mixbackend.benchmarks.one_model.accuracy import root_mean_square_error

    found = list(tensors_in(results))
    worst = 0.0
    for result, eager, exact in zip(found, values["eager"], values["exact"], strict=True):
        if exact.is_floating_point():
            floor = 1e-7 * max(float(exact.abs().max()), 1e-30)
            own = max(root_mean_square_error(exact, eager), floor)
            worst = max(worst, root_mean_square_error(exact, result) / own)
    return worst


def _model_code() -> list[str]:
    """Packages with models that the process has loaded."""
    return sorted({"transformers", "timm", "torchvision"} & set(sys.modules))


if __name__ == "__main__":
    os.environ.setdefault("TORCHINDUCTOR_FREEZING", "0")
    sys.exit(main(sys.argv[1:]))

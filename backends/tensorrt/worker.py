"""The process that builds engines: ``python -m mixbackend.backends.tensorrt.worker``.

Place: started by ``builders``; ``building`` lays down a request and takes the result from the same folder.
Input: folders, a line of standard input each; in a folder model, weights, request. Output: the serialised engine and
``result.json``; a line on standard output for each phase of the build, and when it is done.
Invariants: TensorRT's refusals end in the result, not in a traceback; the file of timings is replaced as a whole, so
that builds side by side lose no more than each other's timings.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any

from mixbackend.backends.common.whole_file import replacing
from mixbackend.backends.tensorrt.api import Api, Settings, add_profiles, parse_errors
from mixbackend.backends.tensorrt.builders import DONE
from mixbackend.backends.tensorrt.building import ENGINE, MODEL, REQUEST, RESULT

_MESSAGES = 6


def build_in(folder: Path) -> None:
    """Build what a folder asks for, and leave the result there."""
    import tensorrt

    messages: list[str] = []
    api = Api(tensorrt, messages.append)
    request = json.loads((folder / REQUEST).read_text())
    try:
        engine, refittable = _build(api, folder, request)
        (folder / ENGINE).write_bytes(engine)
        result = {"error": "", "refittable": sorted(refittable)}
    except _RefusedError as error:
        said = "; ".join(dict.fromkeys(messages[-_MESSAGES:]))
        result = {"error": f"{error}: {said}" if said else str(error), "refittable": []}
    (folder / RESULT).write_text(json.dumps(result))


class _RefusedError(Exception):
    """TensorRT refuses a step."""


def _build(api: Api, folder: Path, request: dict[str, Any]) -> tuple[bytes, frozenset[str]]:
    builder = api.trt.Builder(api.logger)
    settings = Settings(**request["settings"])
    network = api.network(builder)
    parser = api.trt.OnnxParser(network, api.logger)
    if not parser.parse_from_file(str(folder / MODEL)):
        raise _RefusedError(f"the model is refused: {parse_errors(parser)}")
    api.hold_types(network, folder / MODEL)
    config = api.configuration(builder, settings, lambda phase: print(phase, flush=True))
    add_profiles(builder, config, request["profiles"])
    timings = Path(request["timings"])
    _take_timings(config, timings)
    print(f"building, {network.num_layers} layers", flush=True)
    made = builder.build_serialized_network(network, config)
    if made is None:
        raise _RefusedError("the build failed")
    _keep_timings(config, timings)
    serialised = bytes(made)
    return serialised, api.refittable(api.open(serialised)) if settings.refit else frozenset()


def _take_timings(config: Any, path: Path) -> None:
    """Start from what earlier builds measured; what TensorRT does not take is measured again."""
    known = path.read_bytes() if path.exists() else b""
    cache = config.create_timing_cache(known) or config.create_timing_cache(b"")
    if not config.set_timing_cache(cache, False):
        config.set_timing_cache(config.create_timing_cache(b""), False)


def _keep_timings(config: Any, path: Path) -> None:
    """Join what was measured to what is known by now."""
    cache = config.get_timing_cache()
    if path.exists():
        others = config.create_timing_cache(path.read_bytes())
        if others is not None:
            cache.combine(others, False)
    with replacing(path) as file:
        file.write(bytes(cache.serialize()))


def _read_folders(folders: queue.SimpleQueue[Path]) -> None:
    """The pipe from the asking process is closed when that ends, in whatever way, also amid a build."""
    for line in sys.stdin:
        folders.put(Path(line.rstrip("\n")))
    os._exit(1)


def main() -> None:
    """Build in one folder after the other."""
    folders: queue.SimpleQueue[Path] = queue.SimpleQueue()
    threading.Thread(target=_read_folders, args=(folders,), daemon=True).start()
    while True:
        build_in(folders.get())
        print(DONE, flush=True)


if __name__ == "__main__":
    main()

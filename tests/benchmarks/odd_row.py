"""Does what a row of the TensorRT benchmark does, without a GPU, as slowly as ``ODD_ROW`` says: ``ours=30``."""

import json
import os
import sys
import time
from pathlib import Path

WISHES = dict(item.split("=") for item in os.environ.get("ODD_ROW", "").split(",") if item)


def tell(**part):
    print(json.dumps({"row": name, **part}), flush=True)


def take_time(step):
    wish = WISHES.get(step, "0")
    if wish == "dies":
        os._exit(3)
    time.sleep(float(wish))


stage, name, *rest = sys.argv[1:]
given = dict(zip(rest[::2], rest[1::2], strict=True))
folder = Path(given["--folder"], name)
ways = given.get("--ways", "ours").split(",")
print("not a part of a record")
tell(gpu=[os.environ["CUDA_VISIBLE_DEVICES"]])
if stage == "build":
    folder.mkdir(exist_ok=True)
    for way in ways:
        if (folder / f"{way}.ready").exists():
            continue
        take_time(way)
        tell(ways={way: {"built_s": 1.0}})
        (folder / f"{way}.ready").touch()
elif stage == "measure":
    for way in ways:
        tell(ways={way: {"first_s": 0.5}})
    take_time("measure")
    tell(ways={way: {"ms": 1.0 + len(way)} for way in ways})
    if sys.stdin.readline():
        take_time("update")
        tell(update={"ours": {"s": 0.25}})
else:
    take_time("again")
    tell(again={way: {"first_s": 2.5} for way in ways})

"""Peers without models: processes that say what their name tells them, and write down when they were at work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FAKE = """
import json, os, sys, threading, time

from mixbackend.host.processes import end_with_parent

end_with_parent()

def note(event):
    with open(os.environ["PEERS_NOTES"], "a") as stream:
        stream.write(json.dumps([peer, event, time.process_time()]) + "\\n")

def say(**answer):
    print(json.dumps(answer), flush=True)

request = json.loads(sys.stdin.readline())
peer = request["peer"] or request["task"]
model = request["case"]["model"]
if request["task"] == "machine":
    say(status="pass", flops_per_s=2e9, bytes_per_s=1e9)
elif request["task"] == "reference":
    if model == "broken":
        say(status="failed", detail="eager cannot run it")
    else:
        say(status="pass", flops=1_000_000, bytes=2_000_000)
else:
    waiting = {name: os.environ.get(name) for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    note({"start": waiting, "threads": os.environ.get("OMP_NUM_THREADS"), "configuration": request["configuration"]})
    if peer == "inductor" and model == "crashing":
        os.abort()
    if peer == "inductor" and model == "hanging":
        time.sleep(60)
    if peer == "openvino" and model == "spinning":
        def spin():
            while True:
                pass
        threading.Thread(target=spin, daemon=True).start()
    wrong = peer == "onnxruntime" and model == "wrong"
    say(status="wrong" if wrong else "pass", detail="off by 3" if wrong else "", first_call_s=0.5, new_kernels=0,
        warm_up={"calls": 5, "steady": True}, peak_memory_bytes=1, parts={})
    turn = 0
    for line in sys.stdin:
        turn += 1
        if peer == "openvino" and model == "crashing" and turn == 2:
            os.abort()
        if peer == "inductor" and model == "slow":
            time.sleep(60)
        if model == "spinning" and peer != "openvino":
            time.sleep(0.4)
        note("slice")
        say(status="pass", median_s={"eager": 4.0, "onnxruntime": 0.5}.get(peer, 2.0), calls=2, cores_of_others=0.25)
"""


@pytest.fixture
def fake_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module ``fake_peers`` for peers' processes; gives the file in which they note what they did."""
    (tmp_path / "fake_peers.py").write_text(FAKE)
    notes = tmp_path / "notes.jsonl"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PEERS_NOTES", str(notes))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kernels"))
    assert sys.executable
    return notes

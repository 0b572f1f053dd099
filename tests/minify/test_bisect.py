"""Regions and passes are steps of torch's bisector of compilers."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest
import torch
from faulty_backends import WrongGelu

import mixbackend
from mixbackend import registry
from mixbackend.cli import main
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import Config
from mixbackend.contracts.torch_compat import bisecting

CHECK = """
import sys
sys.path[:0] = {path!r}
import torch
import mixbackend
from faulty_backends import WrongGelu

class Twice(torch.nn.Module):
    def forward(self, x):
        x = torch.sin(x)
        torch._dynamo.graph_break()
        x = torch.nn.functional.gelu(x)
        torch._dynamo.graph_break()
        return torch.cos(x)

config = {{"backends": [WrongGelu(), "eager"], "rules": [{{"match": {{}}, "require": "wrong_gelu"}}]}}
backend = mixbackend.auto({{**config, "verify": {{"when": "off"}}}})
with torch.no_grad():
    x = torch.randn(4, 8)
    sys.exit(not torch.allclose(torch.compile(Twice(), backend=backend)(x), Twice()(x), atol=1e-4))
"""


def chain(x: torch.Tensor) -> torch.Tensor:
    x = torch.sin(x)
    torch._dynamo.graph_break()
    x = torch.nn.functional.gelu(x)
    torch._dynamo.graph_break()
    return torch.cos(x)


def test_a_function_in_this_process() -> None:
    from torch._inductor.compiler_bisector import CompilerBisector

    rules = [{"match": {}, "require": "wrong_gelu"}]
    x = torch.randn(4, 8)
    with registry.isolated_registry(WrongGelu, discover=True), torch.no_grad():

        def right() -> bool:
            torch._dynamo.reset()
            backend = mixbackend.auto({"backends": ["wrong_gelu", "eager"], "rules": rules, "verify": {"when": "off"}})
            return torch.allclose(torch.compile(chain, backend=backend)(x), chain(x), atol=1e-4)

        # Torch keeps what it finds under the name.
        by_name = torch.compile(torch.sin, backend="mixbackend")
        torch.testing.assert_close(by_name(x), x.sin())
        assert not right() and not bisecting()
        others = [Mixture(Config()), mixbackend.auto({"backends": ["eager"]})]
        found = CompilerBisector.do_bisect(right)
    assert found is not None and (found.backend, found.subsystem, found.bisect_number) == ("mixbackend", "regions", 1)
    assert "gelu" in found.debug_info and "wrong_gelu" in found.debug_info
    assert not bisecting() and others and mixbackend.backend.config == Config()
    assert pickle.loads(pickle.dumps(mixbackend.backend)) is copy.deepcopy(mixbackend.backend) is mixbackend.backend


@pytest.mark.nightly  # a process for each step
def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import sys

    check = tmp_path / "check.py"
    check.write_text(CHECK.format(path=sys.path))
    with pytest.raises(SystemExit) as left:
        main(["bisect", "--json", sys.executable, str(check)])
    data = json.loads(capfd.readouterr().out)
    assert left.value.code == 1 and data["found"]
    assert (data["backend"], data["step"], data["number"]) == ("mixbackend", "regions", 1)
    assert "wrong_gelu" in data["text"]

"""D5: an operator of another library that is called like one of torch's is not taken for that."""

from __future__ import annotations

import pytest
import torch

from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import OP_CLASSES, op_class_of
from mixbackend.cost.device_priors import prior_device
from mixbackend.cost.priors import prior_rates
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner.roofline import RooflineCostModel


@pytest.mark.parametrize("name", ["view", "add", "mm", "cat", "convolution", "getitem", "embedding", "sort"])
@pytest.mark.parametrize("namespace", ["mylib", "torchvision", "aten_extra", "higher_order"])
def test_only_torchs_own_names_count(name: str, namespace: str) -> None:
    assert op_class_of(f"{namespace}.{name}.default") == "other"
    assert op_class_of(f"aten.{name}.default") in OP_CLASSES
    assert op_class_of(f"aten.{name}.default") != "other"


def test_getitem_of_the_graph_and_prims_keep_their_classes() -> None:
    assert op_class_of("getitem") == "view"
    assert op_class_of("prims.add.default") == "pointwise"


def test_a_foreign_view_is_not_free() -> None:
    @torch.library.custom_op("d05lib::view", mutates_args=())
    def view(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    view.register_fake(torch.empty_like)
    _, graph = trace_graph(lambda x: torch.ops.d05lib.view(x), [torch.randn(1000, 1000)])
    (node,) = (item for item in graph.placed_nodes if item.op == "d05lib.view.default")
    device = prior_device("cpu")
    model = RooflineCostModel(device, {"eager": prior_rates(EagerBackend(), device)})
    assert model.op("eager", graph.view(node.name)).seconds > 0.0

"""What the parts of a package say, as values: the manifest and the graphs.

Place: written by ``writing``, read by ``loading``. The format is ``docs/reference/package.md``; ``VERSION`` rises when
a reader of before could go wrong.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from mixbackend.configuration.fields import Flag, FrozenModel, Text
from mixbackend.contracts import PackageError
from mixbackend.graph.aliases import Sharing
from mixbackend.graph.traced import TracedText
from mixbackend.package.signature import Signature

FORMAT = "mixbackend package"
VERSION = 2
MANIFEST = "manifest.json"
LOCK = "mixbackend.lock.yaml"
WEIGHTS = "weights.safetensors"

Amount = Annotated[int, Field(strict=True, ge=0)]
Digest = Annotated[str, Field(strict=True, pattern="^[0-9a-f]{64}$")]
Sizes = tuple[Amount, ...]


class Member(FrozenModel):
    """A member of the file."""

    sha256: Digest
    size: Amount


class MadeWith(FrozenModel):
    """Where and with what a package was made."""

    mixbackend: Text
    contract: Text
    torch: Text
    threads: Annotated[int, Field(strict=True, ge=1)]
    machine: Text


class PackagedBackend(FrozenModel):
    """A backend that regions were compiled with, on one kind of device.

    Attributes:
        product: name of the device, as ``storage.artifact_key`` has it.
        fingerprint: when it compiled them.
        loading: what must be equal where its artifacts are loaded, see ``Backend.loading``.
        native: whether its artifacts are native code.
        kit: member with what it needs to load them where it cannot compile; empty for none.
    """

    name: Text
    device: Text
    product: Text
    version: str
    fingerprint: str
    loading: str
    native: Flag
    kit: str = ""


class PackagedArtifact(FrozenModel):
    """A compiled region, by its key in the store where the package was made."""

    key: Digest
    backend: Text
    member: Text


class Confirmation(FrozenModel):
    """A region with results that were held against eager when the package was made."""

    backend: Text
    region: Text
    sizes: str


class PackagedWeight(FrozenModel):
    """A weight, as a view of a tensor of the file of weights.

    Attributes:
        tensor: its name there.
        begin: of the view, in elements.
        device: where the program has it.
        written: whether the program writes into it.
    """

    tensor: Text
    shape: Sizes
    strides: Sizes
    begin: Amount = 0
    device: Text
    written: Flag = False


class Bucket(FrozenModel):
    """A plan for a range of sizes.

    Attributes:
        first, last: inclusive bounds of the product of the deciding symbols; ``last`` is ``None`` without end.
        size: that it was planned at.
        hints: values of the symbols there, in the order of ``GraphPlan.symbols``.
        layout: of images.
        plan: canonical, see ``partitioner.plan_data``.
        runners_up: for each region, the backends that could run it, the cheapest first.
    """

    first: Amount = 0
    last: Amount | None = None
    size: Amount = 0
    hints: tuple[Amount, ...] = ()
    layout: str = ""
    plan: dict[str, Any]
    runners_up: dict[Text, tuple[Text, ...]] = Field(default_factory=dict)


class GraphText(FrozenModel):
    """``graph.traced.TracedText``, for inference."""

    text: Text
    names: tuple[Text, ...]
    origins: tuple[tuple[str, str, str], ...]
    origin_of: tuple[Amount, ...]
    roles: tuple[tuple[Text, Text, str], ...]
    returned: tuple[Amount | None, ...]
    shared_inputs: tuple[Amount | None, ...]
    shared_groups: tuple[Amount | None, ...]

    @classmethod
    def of(cls, traced: TracedText) -> GraphText:
        """As it is written."""
        sharing = traced.sharing
        return cls(
            text=traced.text,
            names=traced.names,
            origins=traced.origins,
            origin_of=traced.origin_of,
            roles=traced.roles,
            returned=traced.returned,
            shared_inputs=sharing.inputs,
            shared_groups=sharing.groups,
        )

    def traced(self) -> TracedText:
        """As it is read."""
        sharing = Sharing(self.shared_inputs, self.shared_groups, frozenset())
        places = len(self.names)
        if any(place is not None and place >= places for place in self.returned):
            raise PackageError("a graph of the package returns what it does not compute")
        return TracedText(
            self.text,
            self.names,
            self.origins,
            self.origin_of,
            self.roles,
            self.returned,
            (),
            "inference",
            None,
            sharing,
        )


class RelaidText(FrozenModel):
    """``plan.layouts.Relaid``."""

    graph: GraphText
    conversions: Amount


class GraphPlan(FrozenModel):
    """How a graph is placed.

    Attributes:
        symbols: places, among those of the signature, of the symbols with the product that decides.
        buckets: ascending; one where one plan serves all sizes.
        home: place of the one that the program was exported at.
        constants: whether weights are constants of the plan.
        relaid: the graph as buckets with channels-last images place it: making that of the graph runs operators on
            fake values. ``None`` where there is no such bucket, or the graph has no text.
    """

    symbols: tuple[Amount, ...] = ()
    buckets: Annotated[tuple[Bucket, ...], Field(min_length=1)]
    home: Amount = 0
    constants: Flag = True
    relaid: RelaidText | None = None


class PackagedGraph(FrozenModel):
    """One program.

    Attributes:
        id: name in reports.
        graph: its text.
        signature: what it takes and returns.
        weights: names of the weights that it takes, in its order.
        plan: ``None`` where eager runs it.
    """

    id: Text
    graph: GraphText
    signature: Signature
    weights: tuple[str, ...]
    plan: GraphPlan | None = None


class Manifest(FrozenModel):
    """What a package holds.

    Attributes:
        runners_up: names of backends that could run some region, beside those that do.
        methods: for each method, the members with its graphs; a call runs the first that its arguments fit.
        members: all others, but for this one.
    """

    format: Literal["mixbackend package"] = FORMAT  # type: ignore[assignment]
    version: Literal[1, 2] = VERSION  # type: ignore[assignment]
    made_with: MadeWith
    backends: tuple[PackagedBackend, ...]
    runners_up: tuple[Text, ...] = ()
    methods: dict[Text, Annotated[tuple[Text, ...], Field(min_length=1)]]
    weights: dict[str, PackagedWeight]
    artifacts: tuple[PackagedArtifact, ...]
    confirmed: tuple[Confirmation, ...] = ()
    members: dict[Text, Member]

"""The key `stages`: a network that is cut into the stages of a pipeline, whose parameters are of different ages.

A client is then a pipeline of S stages, s = 1 … S. Minibatch k of a client is computed, in the forward pass of stage s,
with what the client held for its minibatch k − f_s, and in the backward pass with what it held for minibatch k − b_s;
before minibatch 0 it is the initial parameters. Of a single client, which fetches after each of its pushes, these are
the server's parameters f_s and b_s updates ago.

    pipedream   f_s = b_s = S − s             with weight stashing: Narayanan et al. 2019, "PipeDream: generalized
                                              pipeline parallelism for DNN training", SOSP, section 3.3
    one_step    f_s = b_s = 1                 double-buffered weights: Narayanan et al. 2021, arXiv:2006.09503
    pipemare    f_s = 2 (S − s) + 1, b_s = 0  Yang et al. 2021, arXiv:1910.05124, Table 1, with one microbatch in each
                                              minibatch

docs/pipelines.md says where the papers count otherwise.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from fredsim.config.sections import Section
from fredsim.errors import ConfigError, nearest
from fredsim.hyper import HyperParameters, PositiveInt, Printable
from fredsim.networks.layout import Layout

__all__ = ["METHODS", "Delays", "Stages", "first_tensors"]

MOST_NAMED = 40  # layers in a message
#: Delays cost memory: a copy of the parameters for each update that one looks back.
Delay = Annotated[int, Field(ge=0, le=10_000)]
PerStage = Annotated[
    Annotated[Delay, Tag("Whole")] | Annotated[list[Delay], Tag("Each")],
    Discriminator(lambda value: "Each" if isinstance(value, list) else "Whole"),
]
Method = Literal["pipedream", "pipemare", "one_step"]
#: The papers of the methods.
METHODS = {
    "pipedream": "Narayanan et al. 2019, PipeDream: generalized pipeline parallelism for DNN training, SOSP",
    "pipemare": "Yang et al. 2021, PipeMare: asynchronous pipeline parallel DNN training, MLSys, arXiv:1910.05124",
    "one_step": "Narayanan et al. 2021, Memory-efficient pipeline-parallel DNN training, ICML, arXiv:2006.09503",
}


class Delays(HyperParameters):
    """Delays of your own: numbers of updates, of all stages, or a list with one for each."""

    forward: Annotated[PerStage, Field(examples=[[3, 2, 1, 0]])]
    """The delay of the parameters of the forward passes."""
    backward: Annotated[PerStage | None, Field(examples=[0])] = None
    """That of the backward passes, none above its stage's forward one; null: the same parameters as in the forward
    pass, as with weight stashing."""


DelayChoice = Annotated[
    Annotated[Method, Tag("Method")] | Annotated[Delays, Tag("Delays")],
    Discriminator(lambda value: "Delays" if isinstance(value, dict | Delays) else "Method"),
]


#: A sequence of modules names them by numbers.
Layer = Annotated[
    Printable,
    BeforeValidator(lambda value: str(value) if type(value) is int else value, json_schema_input_type=str | int),
]


class Stages(Section):
    """The stages of a pipeline: where the network is cut, and how old each stage's parameters are."""

    later = ("correction", "reschedule", "synchronous")

    cuts: Annotated[list[Layer], Field(min_length=1, max_length=10_000, examples=[["W2", "W3"]])]
    """The layers with which the second stage and all later ones begin, in the order of the parameters: names of modules
    (`layer3`) or of tensors (`W2`)."""
    delay: Annotated[DelayChoice, Field(examples=["pipedream"])]
    """The method, of which the delays follow: `pipedream` (with weight stashing), `pipemare`, `one_step`; or delays of
    your own, `{forward: [3, 2, 1, 0], backward: 0}`."""
    correction: Annotated[float | None, Field(gt=0, lt=1, examples=[0.135])] = None
    """PipeMare's D, of its discrepancy correction: backward passes go by an estimate of the forward passes' parameters;
    null: none."""
    reschedule: Annotated[PositiveInt | None, Field(examples=[1000])] = None
    """PipeMare's K, of its learning-rate rescheduling: in the first K minibatches a stage's learning rate is divided by
    a power of its forward delay, which falls from 1 to 0; null: never."""

    synchronous: Annotated[PositiveInt | None, Field(examples=[500])] = None
    """PipeMare's warm-up: the first so many minibatches of a pipeline have no delay; then the pipeline is filled anew,
    and `correction` and `reschedule` begin; null: none."""

    @model_validator(mode="after")
    def check(self) -> Stages:
        """Refuse what does not fit together, whatever the network."""
        count = len(self.cuts) + 1
        if isinstance(self.delay, Delays):
            for key, given in (("forward", self.delay.forward), ("backward", self.delay.backward)):
                if isinstance(given, list) and len(given) != count:
                    raise ValueError(f"delay.{key} has {len(given)} delays, and cuts make {count} stages: give {count}")
        forward, backward = self.delays()
        for stage, (first, last) in enumerate(zip(forward, backward, strict=True), start=1):
            if last > first:
                what = f"of stage {stage} is {last}, and delay.forward {first}; the backward pass comes later"
                raise ValueError(f"delay.backward {what}: give {first} at most")
        if self.correction is not None and (forward == backward or any(backward)):
            shown = self.delay if isinstance(self.delay, str) else self.delay.model_dump()
            what = "it estimates earlier parameters of the forward passes, and takes backward passes without a delay"
            raise ValueError(f"correction is {self.correction:g}, and delay is {shown}; {what}: leave it out")
        return self

    def delays(self) -> tuple[list[int], list[int]]:
        """Return the forward and the backward delays of the stages, in updates."""
        count = len(self.cuts) + 1
        later = [count - stage for stage in range(1, count + 1)]
        if self.delay == "pipedream":
            return later, later
        if self.delay == "one_step":
            return [1] * count, [1] * count
        if self.delay == "pipemare":
            return [2 * one + 1 for one in later], [0] * count
        assert isinstance(self.delay, Delays)
        forward = _each(self.delay.forward, count)
        return forward, forward if self.delay.backward is None else _each(self.delay.backward, count)

    def parts(self, layout: Layout) -> list[slice]:
        """Return the stages' parts of the flat vector. Raises ConfigError if the network cannot be cut so."""
        known = first_tensors(layout)
        begins, before = [0], ""
        for cut in self.cuts:
            if cut not in known:
                near = nearest(cut, known)
                layers = ", ".join([*known][:MOST_NAMED]) + (", …" if len(known) > MOST_NAMED else "")
                raise ConfigError(f"stages.cuts has {cut!r}; the network has no such layer{near} (layers: {layers})")
            begin = layout.slices[known[cut]].start
            if begin == 0:
                raise ConfigError(
                    f"stages.cuts has {cut!r}, with which the parameters begin; name the later stages' only"
                )
            if begin <= begins[-1]:
                raise ConfigError(f"stages.cuts has {cut!r} after {before!r}; give each once, in the parameters' order")
            begins.append(begin)
            before = cut
        ends = [*begins[1:], layout.size]
        return [slice(*place) for place in zip(begins, ends, strict=True)]


def first_tensors(layout: Layout) -> dict[str, str]:
    """Return the name of the first tensor of each layer, by the layer's name: a tensor's, or a module's around it."""
    found: dict[str, str] = {}
    for name, _ in layout.tensors:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            found.setdefault(".".join(parts[:end]), name)
    return found


def _each(given: Any, count: int) -> list[int]:
    return list(given) if isinstance(given, list) else [given] * count

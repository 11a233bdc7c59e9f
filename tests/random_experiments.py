"""Random experiments: experiment i is always the same, and valid.

They use all servers, dispatchers, gates, compressors and schedules, with hyper-parameters that are drawn within the
bounds of their models, so that new ones take part without a change here.
"""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fredsim.config.document import Document
from fredsim.config.partition import PARTITIONS
from fredsim.config.registry import KNOWN
from fredsim.errors import ConfigError
from fredsim.runs.single.opening import open_experiment
from fredsim.servers.schedules import SCHEDULES

__all__ = ["WITHOUT_ONE", "experiment", "fitting", "made_up", "measured", "staged"]

#: Learning rates, some of which diverge.
RATES = (1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 3.0, 30.0, 1e4, 1e20)
#: The share of experiments whose model is a network of operators.
NETWORKS = 0.2
#: Names that need a file, or have nothing to vary.
WITHOUT_ONE = {"always", "lists"}
#: A folder of this process only, since another process could read a file before it is complete.
TRACES = tempfile.TemporaryDirectory(prefix="fredsim-traces-")


#: The share of the experiments whose clients do more than to compute gradients, and what they may do.
LOCAL_WORK = 0.4
WIDER = 0.15  # of perceptrons that --slow takes
LOCAL_KEYS: dict[str, list[Any]] = {
    "fraction": [0.01, 0.3, 0.5, 0.99],
    "pushes": ["gradients", "difference", "difference_over_lr"],
    "prox": [0.01, 1.0],
    "control_variates": [True],
    "clip": [0.1, 1e6],
    "clip_each_sample": [0.5],
    "noise": [0.001, 1.0],
}


def experiment(number: int) -> dict[str, Any]:
    """Return experiment `number` as plain data."""
    for attempt in range(100):
        data = fitting(made_up(random.Random(f"{number}, {attempt}")))
        if data is not None:
            return _wider(_with_local_work(_with_more_of_networks(data, number), number), number)
    raise AssertionError(f"experiment {number}: no valid one in 100 draws")


def fitting(data: dict[str, Any]) -> dict[str, Any] | None:
    """Return an experiment, None if its parts do not fit together."""
    try:
        open_experiment(data, Document(data).place)
    except ConfigError:
        return None
    return data


def made_up(rng: random.Random) -> dict[str, Any]:
    """Return a drawn experiment, whether its parts fit together or not."""
    clients = rng.choice([1, 2, 3, 5, 8, 9])
    server = _plugin(rng, "server")
    data: dict[str, Any] = {
        "name": "random",
        "seed": rng.randrange(2**32),
        "data": {"name": "digits", "train": rng.choice([50, 97, 300]), "validation": rng.choice([0, 1, 40])},
        "model": {"hidden": _hidden(rng), "init": _init(rng)},
        "clients": {
            "count": clients,
            "batch_size": rng.choice([1, 1, 2, 3, 4, 5, 8, 9, 17, 40]),
            "sampling": rng.choice(["sequential", "iid", "shuffled"]),
            "local_steps": rng.choice([1, 1, 1, 1, 2, 3]),
        },
        "dispatcher": _dispatcher(rng, clients),
        "server": server,
        "evaluation": {"every": rng.randint(1, 30), "unit": rng.choice(["iterations", "iterations", "updates"])},
        "iterations": rng.randint(20, 80),
    }
    if data["dispatcher"]["name"] == "clock" and rng.random() < 0.5:
        data["evaluation"] = {"every": rng.choice([1, 0.5, 2.75, 9.0]), "unit": "seconds"}
    if rng.random() < 0.2:
        data["compress"] = _plugin(rng, "compressor")
    if rng.random() < 0.15:
        data["average"] = {"name": "window", "min_window": 3, "max_window": 9, "rate": rng.choice([0.1, 1.0])}
    if rng.random() < 0.15:
        data["probe"] = {"every": rng.randint(1, 20)}
    if rng.random() < 0.4:
        data["clients"]["partition"] = _partition(rng)
    data["evaluation"]["per_client"] = rng.random() < 0.4
    if rng.random() < 0.3:
        data["events"] = True
    if rng.random() < NETWORKS:
        _make_network(rng, data)
    return data


def _with_more_of_networks(data: dict[str, Any], number: int) -> dict[str, Any]:
    """Return an experiment, some of whose networks drop something, or are trained in part; likewise."""
    rng, name = random.Random(f"networks {number}"), data["model"].get("name")
    if name not in {"resnet", "vgg", "gpt"}:
        return data
    more: dict[str, Any] = {}
    if name != "resnet" and rng.random() < 0.5:
        more["dropout"] = rng.choice([0.1, 0.5, 0.9])
    if rng.random() < 0.3:
        more["trainable"] = rng.choice(["*weight", ["*.bias"], "*[0-4]*"])
    return fitting(data | {"model": data["model"] | more}) or data


def _with_local_work(data: dict[str, Any], number: int) -> dict[str, Any]:
    """Return an experiment, with clients that do more in some; what these draws give changes no other one."""
    for attempt in range(5):
        rng = random.Random(f"clients {number}, {attempt}")
        if not attempt and rng.random() >= LOCAL_WORK:
            return data
        found = fitting(data | {"clients": data["clients"] | _local_work(rng, data)})
        if found is not None:
            return found
    return data


def _wider(data: dict[str, Any], number: int) -> dict[str, Any]:
    """Return an experiment, some with more samples and units than the blocks of kernels have; likewise.

    They take longer, and the first hundred are done often.
    """
    rng = random.Random(f"wide {number}")
    if number < 100 or "name" in data["model"] or rng.random() >= WIDER:
        return data
    wider = {"hidden": [rng.choice([64, 65, 113]) for _ in range(rng.choice([1, 2, 2]))]}
    clients = data["clients"] | {"batch_size": rng.choice([64, 65, 130])}
    rows = {"train": 300} if "train" in data["data"] else {}
    changes = {"model": data["model"] | wider, "clients": clients, "data": data["data"] | rows}
    return fitting(data | changes | {"iterations": min(data["iterations"], 30)}) or data


def _local_work(rng: random.Random, data: dict[str, Any]) -> dict[str, Any]:
    """Return what clients do besides SGD, whether it fits together or not."""
    chosen: dict[str, Any] = {"optimizer": _plugin(rng, "optimizer")} if rng.random() < 0.6 else {}
    if data["dispatcher"]["name"] == "clock" and rng.random() < 0.5:
        chosen["local_steps"] = rng.choice([{"fastest": 4, "by": "speed"}, {"seconds": rng.choice([0.5, 3.0])}])
        chosen["sampling"] = "iid"
    for key, values in LOCAL_KEYS.items():
        if rng.random() < 0.25:
            chosen[key] = rng.choice(values)
    return chosen


def staged(number: int) -> dict[str, Any]:
    """Return experiment `number` of those whose clients are pipelines, or bring stale samples."""
    for attempt in range(100):
        rng = random.Random(f"stages {number}, {attempt}")
        data = made_up(rng)
        name, hidden = data["model"].get("name"), data["model"].get("hidden", [])
        layers = {"resnet": ["1", "3", "4.second", "5", "7"], "gpt": ["positions", "layers.0.hidden", "norm.bias"]}.get(
            name, ["b1", *(f"W{i}" for i in range(2, len(hidden) + 2))]
        )
        if name == "vgg":
            layers = ["1", "4"]
        if rng.random() < 0.2:
            data["clients"]["current"] = True
        else:
            cuts = sorted(rng.sample(layers, rng.randint(1, len(layers))), key=layers.index)
            forward = [rng.choice([0, 1, 2, 5]) for _ in range(len(cuts) + 1)]
            own = {"forward": forward, "backward": [rng.randint(0, most) for most in forward]}
            data["stages"] = {"cuts": cuts, "delay": rng.choice(["pipedream", "one_step", "pipemare", "pipemare", own])}
            for key, value in (("correction", 0.135), ("reschedule", rng.choice([1, 9, 100]))):
                if rng.random() < 0.4:
                    data["stages"][key] = value
        if fitting(data) is not None:
            return data
    raise AssertionError(f"pipeline {number}: no valid one in 100 draws")


def measured(number: int) -> dict[str, Any]:
    """Return experiment `number` of those with other losses, targets, metrics, gradient norms or augmented images."""
    for attempt in range(100):
        rng = random.Random(f"losses {number}, {attempt}")
        data = made_up(rng)
        name, loss = data["model"].get("name"), rng.choice(["cross_entropy", "mse", "bce"])
        chosen = ["top5", "perplexity", "per_class"][: rng.randint(0, 3)] if loss == "cross_entropy" else []
        rng.shuffle(chosen)
        data["loss"] = {"name": loss}
        if loss == "cross_entropy":
            data["loss"]["label_smoothing"] = rng.choice([0.0, 0.1, 0.9])
        if name == "gpt" and loss == "cross_entropy":
            chosen = [one for one in chosen if one != "per_class"]  # few of so few sequences' labels are there
        elif name != "gpt":
            images = name is not None or rng.random() < 0.3
            data["data"] = {"name": f"npz:{_arrays(rng, loss, images=images)}", "validation": 12}
            data["clients"]["batch_size"] = min(9, data["clients"]["batch_size"])
            data["clients"].pop("partition", None)
            if images:
                data["data"]["augment"] = rng.choice([None, {"flip": True}, {"crop": 2}, {"flip": True, "crop": 1}])
            if loss == "cross_entropy" and rng.random() < 0.5:
                data["loss"]["ignore_index"] = rng.choice([-100, 0, 3])
        data["evaluation"] |= {"metrics": chosen, "gradient_norm": rng.random() < 0.4, "test": rng.random() < 0.5}
        if (name != "gpt" or loss == "cross_entropy") and fitting(data) is not None:
            return data
    raise AssertionError(f"loss {number}: no valid one in 100 draws")


def _arrays(rng: random.Random, loss: str, *, images: bool) -> Path:
    """Write an NPZ file of samples with the targets of a loss, labels in turn; return its name."""
    drawn, count = np.random.default_rng(rng.randrange(2**32)), 36
    shape = (rng.choice([1, 2]), 8, 9) if images else (rng.choice([1, 4, 19]),)
    numbers = count, *rng.choice([(), (1,), (3,)])
    arrays: dict[str, Any] = {}
    for part in ("train", "test"):
        x = drawn.integers(-2, 3, (count, *shape)) / 4 if rng.random() < 0.5 else drawn.normal(size=(count, *shape))
        if loss == "cross_entropy":
            y: Any = np.arange(count) % 6
        else:
            y = drawn.normal(size=numbers) if loss == "mse" else drawn.integers(0, 2, numbers) * rng.choice([1.0, 0.75])
            y = y.astype(np.float32)
        arrays |= {f"x_{part}": x.astype(np.float32), f"y_{part}": y}
    file = Path(TRACES.name, f"{rng.randrange(2**64):016x}.npz")
    np.savez(file, **arrays)
    return file


def _make_network(rng: random.Random, data: dict[str, Any]) -> None:
    """Replace the perceptron by a small network, and its data; few gradients, since the oracle is slow."""
    kind = rng.choice(["resnet", "vgg", "gpt", "gpt"])
    data["model"] = {"name": kind, "init": _init(rng)}
    if kind == "gpt":
        data["data"] = {"name": "modular", "p": 5, "train": rng.choice([11, 14]), "validation": rng.choice([0, 1, 8])}
        heads = rng.choice([1, 2, 3])
        data["model"] |= {"width": heads * rng.choice([1, 3, 4]), "heads": heads, "layers": rng.choice([1, 1, 2])}
        if "partition" in data["clients"]:  # a token's label is no class of its sequence
            data["clients"]["partition"] = {"name": "iid", "shards": True}
    else:
        data["data"] = {"name": "digits", "train": rng.choice([17, 50]), "validation": rng.choice([0, 1, 9])}
        if rng.random() < 0.3:
            drawn = {"classes": rng.choice([2, 5]), "size": rng.choice([8, 9]), "clutter": rng.choice([0, 1])}
            data["data"] |= {"name": "glyphs"} | drawn
        own = {"width": 8} if kind == "resnet" else {"widths": rng.choice([[3], [4, 5], [1, 2, 17]])}
        data["model"] |= own
    data["clients"]["batch_size"] = min(data["clients"]["batch_size"], 5)
    data["iterations"] = rng.randint(3, 12)


def _partition(rng: random.Random) -> dict[str, Any]:
    """Return a partition that is usually possible for a few rows and a few clients."""
    name = rng.choice([name for name in PARTITIONS if name not in WITHOUT_ONE])
    chosen: dict[str, Any] = {"name": name}
    if name == "iid":
        chosen["shards"] = True
    elif name == "dirichlet":
        chosen |= {"alpha": rng.choice([0.05, 0.5, 1.0, 100.0]), "self_balancing": rng.random() < 0.5}
        if rng.random() < 0.5:
            chosen |= {"equal_sizes": True, "self_balancing": True, "size": rng.choice([None, 1, 7, 60])}
    elif name == "pathological":
        chosen |= {"classes": rng.randint(1, 4)}
        chosen["assignment"] = rng.choice(["random", "first-deterministic", "deterministic"])
    else:
        chosen["per_client"] = rng.randint(1, 5)
    return chosen


def _hidden(rng: random.Random) -> list[int]:
    return [rng.choice([1, 3, 7, 12, 16, 17, 33]) for _ in range(rng.choice([0, 1, 1, 1, 2, 3]))]


def _init(rng: random.Random) -> Any:
    std = {"name": "normal", "std": rng.choice([0.01, 1.0, 1e6, 1e18, 1e30])}
    return rng.choice(["he", "he", "glorot", "normal", "zeros", std])


def _dispatcher(rng: random.Random, clients: int) -> dict[str, Any]:
    name = rng.choice([*KNOWN["dispatcher"]])
    hyper: dict[str, Any] = {}
    if name == "weighted":
        hyper["weights"] = [rng.choice([0.01, 1.0, 3.5]) for _ in range(rng.randint(1, clients))]
        hyper["on_chosen"] = rng.choice([None, {"factor": rng.choice([0.0, 0.5, 4.0]), "recover_after": 3}])
    elif name == "scripted":
        hyper["order"] = [*range(clients), *(rng.randrange(clients) for _ in range(rng.randint(0, 9)))]
    elif name == "clock":
        hyper = clock(rng, clients)
    elif name == "trace":
        hyper["file"] = _trace(rng, clients)
    chosen: dict[str, Any] = {"name": name, **hyper, "wait": rng.random() < 0.8}
    for key in ("push", "fetch"):
        if rng.random() < 0.3:
            chosen[key] = {gate["name"]: _but_name(gate)} if (gate := _plugin(rng, "gate")) else "always"
    if "push" in chosen:
        chosen["dropped_push"] = rng.choice(["reapply", "skip", "accumulate", "average"])
    if "fetch" in chosen:
        chosen["replica"], chosen["fred_timestamps"] = rng.random() < 0.3, rng.random() < 0.2
    return chosen


def _trace(rng: random.Random, clients: int) -> str:
    """Write a trace, each client once per round, and return its file's name; half of the traces have times."""
    order = [client for _ in range(80) for client in rng.sample(range(clients), clients)][:80]
    time, lines, timed = 0.0, list[str](), rng.random() < 0.5
    for client in order:
        time += rng.choice([0.0, 0.5, rng.random()])
        lines.append(f"{client},{time}" if timed else f"{client}")
    text = "\n".join(["client,time" if timed else "client", *lines])
    file = Path(TRACES.name, f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.csv")
    file.write_text(text, encoding="utf-8")
    return str(file)


def clock(rng: random.Random, clients: int) -> dict[str, Any]:
    """Return the keys of a clock; with a third of the clocks copies take time, with a fifth clients have outages."""
    lists = [[rng.choice([0.5, 1.0, 1.0, 2.0]) for _ in range(clients)], 1.0, 0.25]
    machines = [*lists, {"name": "power", "exponent": rng.choice([0.5, 1.0, -0.3])}]
    machines += [
        {"name": "two_class", "share": 0.4, "factor": 3.0},
        {"name": "gamma", "cv": rng.choice([0.1, 0.6, 3.0])},
    ]
    noises: list[dict[str, Any]] = [{"name": "exponential"}, {"name": "lognormal", "sigma": 0.5}]
    noises += [{"name": "gamma", "cv": 1.5}, {"name": "pareto", "alpha": 1.5}, {"name": "uniform", "spread": 1.0}]
    noises += [{"name": "half_normal", "sd": "sqrt"}, {"name": "shifted_exponential", "shift": 0.3}]
    noises += [{"name": "bernoulli", "p": 0.2, "factor": 7.0}]
    choices: list[Any] = ["none", "none", {**rng.choice(noises), "add": rng.random() < 0.3}]
    chosen: dict[str, Any] = {"compute": {"seconds": rng.choice(machines), "noise": rng.choice(choices)}}
    if rng.random() < 0.25:
        chosen["compute"]["limit"] = rng.choice([0.3, 1.0, [rng.choice([0.2, 0.9, 2.0]) for _ in range(clients)]])
    elif rng.random() < 0.45:
        rates = [None, 1e3, 2e4, [rng.choice([500.0, 1e4]) for _ in range(clients)]]
        latency = rng.choice([0.0, 0.5, [rng.choice([0.0, 0.25]) for _ in range(clients)]])
        chosen["link"] = {"latency": latency, "up": rng.choice(rates), "down": rng.choice(rates)}
        chosen["server"] = {
            "seconds": rng.choice([0.0, 0.25]),
            "up": rng.choice(rates[:3]),
            "down": rng.choice(rates[:3]),
        }
    if rng.random() < 0.2:
        times = [6.0, {"name": "exponential", "mean": 5.0}]
        chosen["outages"] = {"up": rng.choice(times), "down": rng.choice(times), "task": rng.choice(["lost", "paused"])}
    return chosen


def _but_name(plugin: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in plugin.items() if key != "name"}


def _plugin(rng: random.Random, kind: Any, *, plain: bool = False) -> dict[str, Any]:
    """Return a name of this kind, with hyper-parameters; if `plain`, of a class that has none of its kind inside."""
    names = [name for name in KNOWN[kind] if name not in WITHOUT_ONE]
    name = rng.choice([name for name in names if not (plain and "inner" in KNOWN[kind][name].Hyper.model_fields)])
    found: Any = KNOWN[kind][name]
    return {"name": name} | hyper_parameters(rng, found.Hyper)


def hyper_parameters(rng: random.Random, model: type[BaseModel]) -> dict[str, Any]:
    """Return values of a model's fields: of the required ones, and of half of the others."""
    chosen: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        if name == "lr":
            chosen[name] = _rate(rng)
        elif info.is_required() or rng.random() < 0.5:
            chosen[name] = _value(rng, name, info.annotation, info.metadata)
    if "lr" in chosen and chosen.get("inner") is not None:
        del chosen["lr"]
    return chosen


def _rate(rng: random.Random) -> Any:
    """Return a learning rate: a number, or a schedule."""
    if rng.random() < 0.8:
        return rng.choice(RATES)
    name = rng.choice([*SCHEDULES])
    schedule: Any = SCHEDULES[name]
    chosen = hyper_parameters(rng, schedule)
    return chosen | {"name": name} | ({"base": rng.choice(RATES)} if "base" in schedule.model_fields else {})


def _value(rng: random.Random, name: str, annotation: Any, metadata: Sequence[Any]) -> Any:
    """Return a value that a field may have."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if name == "inner" and origin is dict:  # of a compressor, which must have one
        return _plugin(rng, "compressor", plain=True)
    if name == "inner":
        return rng.choice([None, _plugin(rng, "server", plain=True)])
    if origin is Annotated:
        inner = [x for part in parts[1:] for x in (part.metadata if isinstance(part, FieldInfo) else [part])]
        return _value(rng, name, parts[0], inner)
    if origin in {Union, UnionType}:
        return _value(rng, name, rng.choice(parts), metadata)
    if origin is Literal:
        return rng.choice(parts)
    if origin is list:  # often one value per client, which may not be as many as there are clients
        return [_value(rng, name, parts[0], metadata) for _ in range(rng.choice([1, 2, 3, 5, 8, 9]))]
    if annotation is NoneType:
        return None
    if annotation is bool:
        return rng.random() < 0.5
    if annotation in {int, float}:
        return _number(rng, annotation, metadata)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return hyper_parameters(rng, annotation)
    raise AssertionError(f"no values of {name}: {annotation}")


def _number(rng: random.Random, kind: type, metadata: Sequence[Any]) -> Any:
    """Return a number within the bounds that a field states, often near one of them."""
    bounds = {key: getattr(item, key) for item in metadata for key in ("ge", "gt", "le", "lt") if hasattr(item, key)}
    low, high = bounds.get("ge", bounds.get("gt", -10)), bounds.get("le", bounds.get("lt", 1e3))
    if kind is int:
        return rng.randint(int(low) + ("gt" in bounds), min(int(low) + 8, int(high)))
    if high <= 1:
        return rng.choice([low if "ge" in bounds else low + 1e-6, 0.1 * high, 0.5 * high, 0.9 * high, 0.999 * high])
    return rng.choice([low if "ge" in bounds else low + 1e-6, low + 0.01, low + 1.0, low + 5.0, low + 40.0])

"""Write tests/golden/digests.json: the digests of short runs of every server × dispatcher that fit together, and more.

    python tests/golden/make.py

A changed digest means that results of an earlier version can no longer be reproduced: CHANGELOG.md must say so and why,
under "Numerics", and give the new digest of this file, for which the tests look there.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import fredsim

FILE = Path(__file__).with_name("digests.json")
#: The folder of the module own_problems.
PROBLEMS = str(Path(__file__).parents[1])
#: Some of the embedded digits, enlarged to 28×28 (each pixel nine times, a margin of 2).
IMAGES = Path(__file__).with_name("images.npz")

BASE: dict[str, Any] = {
    "iterations": 48,
    "data": {"name": "digits", "train": 100},
    "model": {"hidden": [12, 7]},
    "clients": {"count": 5, "batch_size": 3},
    "evaluation": {"every": 1000},
}
SERVERS: dict[str, dict[str, Any]] = {
    "sync": {"name": "sync", "lr": 0.3},
    "sync, 2 backup workers": {"name": "sync", "lr": 0.3, "aggregate": 3},
    "sync, restart": {"name": "sync", "lr": 0.3, "aggregate": 3, "restart": True},
    "sync of dcasgd": {"name": "sync", "inner": {"name": "dcasgd", "lr": 0.3}},
    "soft_sync": {"name": "soft_sync", "lr": 0.3, "n": 2},
    "soft_sync, aware": {"name": "soft_sync", "lr": 0.3, "n": 2, "aware": True},
    "asgd": {"name": "asgd", "lr": 0.1},
    "asgd, decay": {"name": "asgd", "lr": 0.1, "weight_decay": 0.01},
    "sasgd": {"name": "sasgd", "lr": 0.3},
    "sasgd, plus1": {"name": "sasgd", "lr": 0.3, "divisor": "plus1"},
    "exponential": {"name": "exponential", "lr": 0.3, "kappa": 0.2},
    "average_staleness": {"name": "average_staleness", "lr": 0.3, "staleness": 4.0},
    "downpour": {"name": "downpour", "lr": 0.1, "n_push": 2, "n_fetch": 3},
    "fasgd, std": {"name": "fasgd", "lr": 0.01},
    "fasgd, printed": {"name": "fasgd", "lr": 0.3, "variant": "printed"},
    "fasgd, released": {"name": "fasgd", "lr": 0.01, "variant": "released"},
    "bfasgd": {"name": "bfasgd", "lr": 0.01, "c_push": 0.3, "c_fetch": 0.3},
    "dcasgd, adaptive": {"name": "dcasgd", "lr": 0.1},
    "dcasgd, constant": {"name": "dcasgd", "lr": 0.1, "adaptive": False, "backup": "push"},
    "dcasgd, as Multiverso": {
        "name": "dcasgd",
        "lr": 0.1,
        "backup": "push",
        "initial_backup": "zero",
        "mean_square": "client",
    },
    "ternary_sync": {"name": "ternary_sync", "lr": 0.3},
    "ternary_sync, own scalers": {"name": "ternary_sync", "lr": 0.3, "share_scaler": False, "clip_sigma": 2.5},
    "averaged": {"name": "averaged", "lr": 0.1, "t0": 10, "l2": 0.01},
    "averaged, torch": {"name": "averaged", "lr": 0.1, "mode": "torch", "t0": 10},
    "momentum": {"name": "momentum", "lr": 0.03},
    "momentum, nesterov": {"name": "momentum", "lr": 0.03, "nesterov": True},
    "async_nesterov": {"name": "async_nesterov", "lr": 0.3},
    "rmsprop": {"name": "rmsprop", "lr": 0.003},
    "adagrad": {"name": "adagrad", "lr": 0.03},
    "adam": {"name": "adam", "lr": 0.003},
    "nadam": {"name": "nadam", "lr": 0.003, "beta1": 0.99},
    "fedasync": {"name": "fedasync", "lr": 0.1},
    "fedbuff": {"name": "fedbuff", "lr": 0.1, "buffer": 3},
    "fadas": {"name": "fadas", "lr": 0.1, "buffer": 3},
    "ca2fl": {"name": "ca2fl", "lr": 0.1, "buffer": 3},
    "delayed_nesterov": {"name": "delayed_nesterov", "lr": 0.1},
    "delayed_nesterov, spread": {"name": "delayed_nesterov", "lr": 0.1, "every": 4, "activation": 0.125},
    "slowmo": {"name": "slowmo", "lr": 0.1},
    "mindflayer": {"name": "mindflayer", "lr": 0.3, "probability": 0.7},
    "delay_adaptive": {"name": "delay_adaptive", "lr": 0.1, "n": 3},
    "rescaled": {"name": "rescaled", "lr": 0.1},
    "rescaled, times": {"name": "rescaled", "lr": 0.1, "times": [1.0, 2.0, 0.5, 3.0, 1.0]},
    "gap_aware": {"name": "gap_aware", "lr": 0.1},
    "dana": {"name": "dana", "lr": 0.03},
    "easgd": {"name": "easgd", "lr": 0.1, "alpha": 0.2, "period": 3},
    "rennala": {"name": "rennala", "lr": 0.3, "batch": 3},
    "ringmaster": {"name": "ringmaster", "lr": 0.1, "threshold": 3},
    "ringmaster, stop": {"name": "ringmaster", "lr": 0.1, "threshold": 3, "stop": True},
    "sign_majority": {"name": "sign_majority", "lr": 0.003},
    "ia2sgd": {"name": "ia2sgd", "lr": 0.1},
    "ia2sgd, delay": {"name": "ia2sgd", "lr": 0.1, "max_delay": 3},
    "malenia": {"name": "malenia", "lr": 0.3},
    "malenia, harmonic": {"name": "malenia", "lr": 0.3, "harmonic": 1.5},
    "ringleader": {"name": "ringleader", "lr": 0.1},
    "throttle": {"name": "throttle", "lr": 0.1, "q": 1.5},
}
DISPATCHERS: dict[str, dict[str, Any]] = {
    "uniform": {"name": "uniform"},
    "uniform, wait false": {"name": "uniform", "wait": False},
    "weighted": {"name": "weighted", "weights": [1.0, 4.0], "on_chosen": {"factor": 0.5, "recover_after": 3}},
    "round_robin": {"name": "round_robin"},
    "scripted": {"name": "scripted", "order": [0, 3, 1, 1, 4, 2, 0]},
    "trace": {"name": "trace", "file": str(Path(__file__).with_name("trace.csv"))},  # for servers that hold, too
    "clock": {
        "name": "clock", "compute": {"seconds": {"name": "gamma", "cv": 0.6}, "noise": {"name": "gamma", "cv": 0.3}}
    },
}  # fmt: skip
NETWORK: dict[str, Any] = {
    "name": "clock",
    "compute": {"seconds": {"name": "power"}, "noise": {"name": "exponential"}},
    "link": {"latency": 0.1, "up": [1e4, 3e3, 1e4, 1e5, 1e4], "down": 2e4},
    "server": {"seconds": 0.1, "up": 2e4, "down": 2e4},
}
#: Experiments that vary the data, the model, the sampling and more, one at a time.
#: What clients with local work of their own have besides.
OF_CLIENTS: dict[str, Any] = {"count": 5, "batch_size": 3, "sampling": "iid"}
#: A pipeline.
OF_STAGES: dict[str, Any] = {
    "clients": {"count": 1, "batch_size": 3},
    "stages": {"cuts": ["W2", "W3"], "delay": "pipedream"},
}
OTHERS: dict[str, dict[str, Any]] = {
    "softmax regression": {"model": {"hidden": []}},
    "glorot": {"model": {"hidden": [12], "init": "glorot"}},
    "torch": {"model": {"hidden": [12], "init": "torch"}},
    "normal": {"model": {"hidden": [12], "init": {"name": "normal", "std": 0.5}}},
    "zeros": {"model": {"hidden": [], "init": "zeros"}},
    "iid": {"clients": {"count": 5, "batch_size": 3, "sampling": "iid"}},
    "shuffled": {"clients": {"count": 5, "batch_size": 3, "sampling": "shuffled"}, "iterations": 80},
    "seed": {"seed": 2**32 - 1},
    "schedule": {"server": {"name": "asgd", "lr": {"name": "cosine", "base": 0.3, "steps": 40}}},
    "schedule, inverse power": {
        "server": {"name": "asgd", "lr": {"name": "inverse_power", "base": 0.3, "lambd": 0.1, "power": 0.75}}
    },
    "local steps": {"clients": {"count": 5, "batch_size": 3, "local_steps": 3}},
    "clients, adamw": {
        "clients": OF_CLIENTS | {"optimizer": {"name": "adamw", "lr": 0.01, "keep_state": True}, "local_steps": 3}
    },
    "clients, momentum": {
        "clients": OF_CLIENTS | {"optimizer": {"name": "momentum"}, "prox": 0.1, "clip": 0.5, "noise": 0.01}
    },
    "clients, scaffold": {
        "clients": OF_CLIENTS | {"control_variates": True, "fraction": 0.5, "local_steps": 2},
        "server": {"name": "sync", "lr": 0.3},
    },
    "clients, speed": {
        "clients": OF_CLIENTS | {"local_steps": {"seconds": 2.5}, "clip_each_sample": 0.5},
        "dispatcher": {"name": "clock", "compute": {"seconds": {"name": "power"}, "noise": {"name": "exponential"}}},
    },
    "stages, pipedream": OF_STAGES | {"server": SERVERS["async_nesterov"]},
    "stages, one_step": OF_STAGES | {"stages": {"cuts": ["b1"], "delay": "one_step"}, "clients": OF_CLIENTS},
    "stages, pipemare": OF_STAGES | {"stages": {"cuts": ["W2", "W3"], "delay": "pipemare"}},
    "stages, corrected": OF_STAGES
    | {"stages": {"cuts": ["W2", "W3"], "delay": "pipemare", "correction": 0.135, "reschedule": 30}},
    "clients, current": {"clients": OF_CLIENTS | {"current": True}},
    "window average": {"average": {"name": "window", "min_window": 5, "max_window": 20}},
    **{f"compress {name}": {"compress": {"name": name}} for name in ("ternary", "qsgd", "sign", "error_feedback_sign")},
    "compress top_k": {"compress": {"name": "top_k", "k": 0.1}},
    "compress ef21": {
        "server": {"name": "sync", "lr": 0.3},
        "compress": {"name": "ef21", "inner": {"name": "top_k", "k": 0.1}},
    },
    **{
        f"dropped push, {policy}": {"dispatcher": {"push": {"every": 3}, "fetch": {"every": 2}, "dropped_push": policy}}
        for policy in ("reapply", "skip", "accumulate", "average")
    },
    **{
        f"{name}, per tensor": {
            "server": {"name": "fasgd", "lr": 0.01},
            "dispatcher": {"push": gate, "fetch": gate, "dropped_push": "accumulate"},
        }
        for name, gate in (
            ("bandwidth", {"bandwidth_aware": {"c": 0.3, "per": "tensor"}}),
            ("budget", {"budget": 1500.0}),
        )
    },
}
OTHERS |= {
    "clock, network": {"dispatcher": NETWORK},
    "clock, network, gates": {"dispatcher": NETWORK | {"push": {"every": 2}, "fetch": {"every": 3}}},
    "clock, network, compress": {"dispatcher": NETWORK, "compress": {"name": "ternary"}},
    "clock, network, sync": {"dispatcher": NETWORK, "server": SERVERS["sync"]},
    "clock, network, stop": {"dispatcher": NETWORK, "server": SERVERS["ringmaster, stop"]},
    "clock, network, sync, restart": {
        "dispatcher": NETWORK,
        "server": SERVERS["sync, restart"],
        "clients": {"count": 5, "batch_size": 3, "sampling": "iid"},
    },
    "clock, limit": {
        "server": {"name": "mindflayer", "lr": 0.3, "trials": [2, 1, 0, 3, 1]},
        "dispatcher": {"name": "clock", "compute": {"noise": {"name": "exponential"}, "limit": [1, 0.5, 1, 0.2, 2]}},
    },
    "clock, wait false": {"dispatcher": DISPATCHERS["clock"] | {"wait": False}},
    "clock, outages lost": {"dispatcher": DISPATCHERS["clock"] | {"outages": {"up": 5.0, "down": 2.0}}},
    "clock, outages paused": {
        "dispatcher": DISPATCHERS["clock"]
        | {"outages": {"up": {"name": "exponential", "mean": 5.0}, "down": {"name": "exponential"}, "task": "paused"}}
    },
    "clock, seconds": {"dispatcher": DISPATCHERS["clock"], "iterations": None, "seconds": 12.0},
    **{
        f"clock, {noise['name']}": {"dispatcher": {"name": "clock", "compute": {"noise": noise}}}
        for noise in (
            {"name": "exponential"}, {"name": "shifted_exponential", "shift": 0.5}, {"name": "lognormal", "sigma": 0.5},
            {"name": "pareto", "alpha": 2.5}, {"name": "uniform", "spread": 0.5}, {"name": "half_normal", "add": True},
            {"name": "bernoulli", "p": 0.2, "factor": 5.0},
        )
    },
}  # fmt: skip
#: The partitions, and the ways to sample within a shard.
PARTITIONS: dict[str, dict[str, Any]] = {
    "iid": {"partition": {"name": "iid", "shards": True}},
    "dirichlet": {"partition": {"name": "dirichlet", "alpha": 0.3}},
    "dirichlet, of at least 10": {
        "partition": {"name": "dirichlet", "alpha": 0.5, "min_size": 10, "self_balancing": False}
    },
    "dirichlet, iid within": {"partition": {"name": "dirichlet", "alpha": 0.3}, "sampling": "iid"},
    "dirichlet, shuffled within": {"partition": {"name": "dirichlet", "alpha": 0.3}, "sampling": "shuffled"},
    "dirichlet, equal sizes": {"partition": {"name": "dirichlet", "alpha": 0.3, "equal_sizes": True, "size": 7}},
    "pathological": {"partition": {"name": "pathological", "classes": 3}},
    "pathological, first": {"partition": {"name": "pathological", "classes": 3, "assignment": "first-deterministic"}},
    "pathological, in turn": {"partition": {"name": "pathological", "classes": 3, "assignment": "deterministic"}},
    "shards": {"partition": {"name": "shards", "per_client": 2}},
}
#: Least squares and a quadratic.
LINEAR: dict[str, Any] = {"name": "linear", "init": "normal"}
LEAST_SQUARES: dict[str, Any] = {"name": "least_squares", "columns": 13, "noise": 0.1, "train": 100, "validation": 9}
QUADRATIC: dict[str, Any] = {"name": "quadratic", "size": 70, "noise": 0.1}
OF_WORKS = {"data": QUADRATIC, "clients": {"count": 5, "batch_size": 1}, "model": {"name": "linear", "init": "first"}}
OTHERS |= {
    "least squares": {"data": LEAST_SQUARES, "model": LINEAR},
    "least squares, sync": {"data": LEAST_SQUARES, "model": LINEAR, "server": SERVERS["sync"]},
    "least squares, iid, seed": {
        "data": LEAST_SQUARES | {"seed": 7},
        "model": {"name": "linear"},
        "clients": {"count": 5, "batch_size": 40, "sampling": "iid", "partition": {"name": "iid", "shards": True}},
    },
    "least squares, published": {"data": {"name": "mishchenko"}, "model": {"name": "linear"}},
    "quadratic": OF_WORKS,
    "quadratic, local steps": OF_WORKS | {"clients": {"count": 5, "batch_size": 1, "local_steps": 3}},
    "quadratic, clock, stop": OF_WORKS | {"dispatcher": DISPATCHERS["clock"], "server": SERVERS["ringmaster, stop"]},
}
#: Convolutions and pooling with group and batch norms, and a transformer; few steps of small ones.
SUMS: dict[str, Any] = {
    "data": {"name": "modular", "p": 11},
    "model": {"name": "gpt", "width": 12, "layers": 1, "heads": 2},
}
FEW = {"iterations": 8, "clients": {"count": 3, "batch_size": 3}}
OTHERS |= {
    "resnet": FEW | {"model": {"name": "resnet", "width": 8}},
    "resnet, local steps, compress": {
        "model": {"name": "resnet", "width": 8, "init": "torch"},
        "iterations": 4,
        "clients": {"count": 3, "batch_size": 2, "local_steps": 2},
        "compress": {"name": "top_k", "k": 0.1},
    },
    "vgg": FEW | {"model": {"name": "vgg", "widths": [8, 12]}, "server": SERVERS["fasgd, std"]},
    "lenet": FEW | {"data": {"name": f"npz:{IMAGES}", "validation": 9}, "model": {"name": "lenet"}},
    "resnet, drawn images": FEW
    | {
        "data": {"name": "glyphs", "size": 9, "train": 20, "validation": 5},
        "model": {"name": "resnet", "width": 8},
    },
    "gpt": SUMS | {"server": SERVERS["adam"]},
    "gpt, sync, clock": SUMS | {"server": SERVERS["sync"], "dispatcher": DISPATCHERS["clock"]},
    "gpt, dropout": SUMS | {"model": SUMS["model"] | {"dropout": 0.2}, "server": SERVERS["adam"]},
    "vgg, dropout, local steps": {
        "model": {"name": "vgg", "widths": [8], "dropout": 0.5},
        "iterations": 8,
        "clients": {"count": 3, "batch_size": 3, "local_steps": 2},
    },
}
OTHERS |= {f"partition {name}": {"clients": BASE["clients"] | changes} for name, changes in PARTITIONS.items()}
#: Of a problem whose class promises the same bits everywhere (tests/own_problems.py).
OTHERS |= {
    f"problem, {name}": {
        "problem": {"name": "own_problems:Bowl", "names": True}, "clients": {"count": 5} | clients,
        "server": {"name": "fasgd", "lr": 0.01}, "dispatcher": {"fetch": {"bandwidth_aware": {"c": 0.3}}},
    }
    for name, clients in {"of a user's own": {}, "local steps": {"local_steps": 3, "noise": 0.01}}.items()
}  # fmt: skip
#: Servers that make their clients wait.
HOLDING = {
    name
    for name in SERVERS
    if name.startswith(("sync", "soft_sync", "ternary_sync", "sign_majority", "slowmo", "mindflayer"))
}


def experiments() -> dict[str, dict[str, Any]]:
    """Return every golden experiment, by name."""
    found = {
        f"{server} × {dispatcher}": BASE | {"server": SERVERS[server], "dispatcher": DISPATCHERS[dispatcher]}
        for server in SERVERS
        for dispatcher in DISPATCHERS
        if not (server in HOLDING and dispatcher == "uniform, wait false")
    }
    found |= {name: BASE | {"server": SERVERS["asgd"]} | changes for name, changes in OTHERS.items()}
    for experiment in found.values():
        if "problem" in experiment:
            del experiment["data"], experiment["model"]
    return found


def has_kernels(experiment: dict[str, Any], backend: str) -> bool:
    """Return whether a backend computes an experiment: CUDA has one vector for both passes."""
    return backend != "cuda" or experiment.get("stages", {}).get("delay") != "pipemare"


def is_network(experiment: dict[str, Any]) -> bool:
    """Return whether an experiment is of a network other than dense ones and least squares."""
    return experiment.get("model", {}).get("name", "mlp") not in {"mlp", "linear"}


def digest(experiment: dict[str, Any], backend: str, folder: Path) -> str:
    """Run an experiment on a backend and return its digest."""
    if PROBLEMS not in sys.path:
        sys.path.append(PROBLEMS)
    result = fredsim.run(experiment | {"backend": backend}, out=folder)
    assert isinstance(result, fredsim.Result)
    return str(result.summary["digest"])


def main() -> None:
    """Write the file, and print its digest, which CHANGELOG.md must name."""
    with tempfile.TemporaryDirectory() as folder:
        digests = {
            name: digest(experiment, "numpy", Path(folder) / str(number))
            for number, (name, experiment) in enumerate(experiments().items())
        }
    FILE.write_text(json.dumps(digests, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"golden digests {hashlib.sha256(FILE.read_bytes()).hexdigest()[:16]}")


if __name__ == "__main__":
    main()

"""The variants of every server that the common tests use."""

from typing import Any

__all__ = ["VARIANTS"]

FALLING = {"name": "step", "base": 0.02, "every": 20, "factor": 0.9}

# One line per variant, as in YAML; `average` is for WindowAverage around the server. All common tests use all of them.
VARIANTS: dict[str, dict[str, Any]] = {
    "sync": {"name": "sync", "lr": 0.05},
    "sync aggregate": {"name": "sync", "lr": 0.05, "aggregate": 4},
    "sync restart": {"name": "sync", "lr": 0.05, "aggregate": 4, "restart": True},
    "sync dcasgd": {"name": "sync", "inner": {"name": "dcasgd", "lr": 0.05, "initial_backup": "zero"}},
    "sync dcasgd push": {"name": "sync", "inner": {"name": "dcasgd", "lr": 0.05, "adaptive": False, "backup": "push"}},
    "sync averaged": {"name": "sync", "inner": {"name": "averaged", "lr": 0.05}},
    "sync fasgd": {"name": "sync", "inner": {"name": "fasgd", "lr": 0.02}},
    "soft_sync": {"name": "soft_sync", "lr": 0.05, "n": 2},
    "soft_sync aware": {"name": "soft_sync", "lr": 0.05, "n": 3, "aware": True, "divisor": "plus1"},
    "soft_sync aware max1": {"name": "soft_sync", "lr": 0.05, "n": 3, "aware": True},
    "asgd": {"name": "asgd", "lr": 0.01},
    "asgd schedule": {"name": "asgd", "lr": {"name": "inverse_power", "base": 0.05, "lambd": 0.1, "power": 0.75}},
    "asgd decay": {"name": "asgd", "lr": 0.01, "weight_decay": 0.1},
    "sasgd": {"name": "sasgd", "lr": 0.05},
    "sasgd plus1": {"name": "sasgd", "lr": 0.05, "divisor": "plus1"},
    "exponential": {"name": "exponential", "lr": 0.05, "kappa": 0.3},
    "average_staleness": {"name": "average_staleness", "lr": 0.05, "staleness": 5.0},
    "downpour": {"name": "downpour", "lr": 0.01, "n_push": 2, "n_fetch": 3},
    "fasgd std": {"name": "fasgd", "lr": 0.005},
    "fasgd std plus1": {"name": "fasgd", "lr": 0.005, "divisor": "plus1", "gamma": 0.8, "beta": 0.7, "eps": 0.01},
    "fasgd printed": {"name": "fasgd", "lr": 0.1, "variant": "printed"},
    "fasgd released": {"name": "fasgd", "lr": 0.005, "variant": "released"},
    "bfasgd": {"name": "bfasgd", "lr": 0.005},
    "bfasgd released": {"name": "bfasgd", "lr": 0.005, "variant": "released", "c_push": 0.0, "c_fetch": 0.5},
    **{
        f"dcasgd {kind} {backup} {start}": {
            "name": "dcasgd", "lr": 0.01, "adaptive": kind == "adaptive", "backup": backup, "initial_backup": start,
            "lambda0": None if start == "params" else 3.0,
        }
        for kind in ("constant", "adaptive") for backup in ("pull", "push") for start in ("params", "zero")
    },
    **{
        f"dcasgd adaptive {backup} client": {
            "name": "dcasgd", "lr": 0.01, "backup": backup, "mean_square": "client", "lambda0": 1.5, "momentum": 0.9,
            "eps": 1e-5,
        }
        for backup in ("pull", "push")
    },
    "ternary_sync": {"name": "ternary_sync", "lr": 0.05},
    "ternary_sync own": {"name": "ternary_sync", "lr": 0.05, "share_scaler": False},
    "ternary_sync clip": {"name": "ternary_sync", "lr": 0.05, "clip_sigma": 1.5},
    "ternary_sync own clip": {"name": "ternary_sync", "lr": 0.05, "clip_sigma": 2.5, "share_scaler": False},
    "averaged": {"name": "averaged", "lr": 0.01},
    "averaged t0": {"name": "averaged", "lr": 0.01, "t0": 300.0},
    "averaged l1": {"name": "averaged", "lr": 2.0**-7, "l1": 2.0**-4},  # θ's grid holds the product: no drift
    "averaged l2": {"name": "averaged", "lr": FALLING, "l2": 0.1},
    "averaged torch": {"name": "averaged", "lr": 0.01, "mode": "torch", "lambd": 0.05},
    "averaged torch l2": {"name": "averaged", "lr": 0.01, "mode": "torch", "l2": 0.05, "t0": 50.0, "alpha": 0.5},
    "momentum": {"name": "momentum", "lr": 0.005},
    "momentum decay": {"name": "momentum", "lr": 0.005, "momentum": 0.5, "weight_decay": 0.1},
    "momentum nesterov": {"name": "momentum", "lr": 0.005, "nesterov": True},
    "async_nesterov": {"name": "async_nesterov", "lr": 0.2},
    "async_nesterov decay": {"name": "async_nesterov", "lr": FALLING, "momentum": 0.5, "weight_decay": 0.1},
    "rmsprop": {"name": "rmsprop", "lr": 0.005},
    "adagrad": {"name": "adagrad", "lr": 0.05},
    "adam": {"name": "adam", "lr": 0.005},
    "adam decay": {"name": "adam", "lr": FALLING, "beta1": 0.8, "beta2": 0.99, "weight_decay": 0.05},
    "fedasync constant": {"name": "fedasync", "lr": 0.05, "rule": "constant"},
    "fedasync polynomial": {"name": "fedasync", "lr": 0.05},
    "fedasync hinge": {"name": "fedasync", "lr": 0.05, "rule": "hinge", "a": 0.7, "b": 3.0, "mixing": 0.9},
    "fedbuff": {"name": "fedbuff", "lr": 0.05, "buffer": 4, "server_lr": 0.7},
    "fedbuff constant": {"name": "fedbuff", "lr": FALLING, "buffer": 3, "weight": "constant"},
    "fadas": {"name": "fadas", "lr": 0.05, "buffer": 3},
    "fadas 2": {"name": "fadas", "lr": FALLING, "server_lr": 0.01, "buffer": 4, "beta2": 0.9, "eps": 1e-3, "tau_c": 2},
    "ca2fl": {"name": "ca2fl", "lr": FALLING, "buffer": 4, "server_lr": 0.3, "weight_decay": 0.05},
    "delayed_nesterov": {"name": "delayed_nesterov", "lr": 0.02},
    "delayed_nesterov c": {"name": "delayed_nesterov", "lr": FALLING, "momentum": 0.6, "every": 4, "activation": 0.2},
    "slowmo": {"name": "slowmo", "lr": FALLING, "momentum": 0.8, "server_lr": 0.7},
    "mindflayer": {"name": "mindflayer", "lr": 0.02, "probability": 0.7},
    "delay_adaptive": {"name": "delay_adaptive", "lr": 0.01},
    "delay_adaptive n": {"name": "delay_adaptive", "lr": 0.05, "n": 2},
    "rescaled": {"name": "rescaled", "lr": 0.01},
    "gap_aware": {"name": "gap_aware", "lr": 0.01},
    "gap_aware falling": {"name": "gap_aware", "lr": FALLING, "decay": 0.9},
    "gap_aware c": {"name": "gap_aware", "lr": 0.01, "c": 0.02},
    "dana": {"name": "dana", "lr": 0.005},
    "dana falling": {"name": "dana", "lr": FALLING, "gamma": 0.5},
    "easgd": {"name": "easgd", "lr": 0.05, "alpha": 0.2, "period": 2},
    "rennala": {"name": "rennala", "lr": 0.05, "batch": 3},
    "ringmaster": {"name": "ringmaster", "lr": 0.01, "threshold": 5},
    "ringmaster stop": {"name": "ringmaster", "lr": 0.01, "threshold": 5, "stop": True},
    "ia2sgd": {"name": "ia2sgd", "lr": 0.05},
    "ia2sgd delay": {"name": "ia2sgd", "lr": 0.05, "max_delay": 3, "weight_decay": 0.1},
    "malenia": {"name": "malenia", "lr": 0.05},
    "malenia decay": {"name": "malenia", "lr": FALLING, "weight_decay": 0.1},
    "ringleader": {"name": "ringleader", "lr": 0.05},
    "ringleader falling": {"name": "ringleader", "lr": FALLING, "weight_decay": 0.1},
    "throttle": {"name": "throttle", "lr": 0.02, "q": 1.5},
    "throttle less": {"name": "throttle", "lr": 0.05, "q": 8.0},
    "sign_majority": {"name": "sign_majority", "lr": 0.01},
    "window asgd": {"name": "asgd", "lr": 0.01, "average": {"rate": 0.5, "min_window": 3, "max_window": 120}},
    "window sync": {"name": "sync", "lr": 0.05, "average": {"rate": 0.5, "min_window": 3, "max_window": 120}},
    "window rmsprop": {"name": "rmsprop", "lr": 0.01, "average": {"rate": 0.2, "min_window": 10, "max_window": 10000}},
}  # fmt: skip

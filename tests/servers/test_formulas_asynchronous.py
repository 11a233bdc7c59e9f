"""Servers that step on every push, against float64 formulas written from the papers."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Wide = NDArray[np.float64]
Spec = dict[str, Any]
State = dict[str, Any]
Push = SimpleNamespace
Formula = Callable[[Wide, State, Push], Wide | None]


def plain(factor: Callable[[Push], float]) -> Formula:
    """θ − α·factor·g."""
    return lambda theta, s, p: np.asarray(theta - p.alpha * factor(p) * p.g)


def sasgd(spec: Spec) -> Formula:
    return plain(lambda p: 1 / (p.tau + 1) if spec.get("divisor") == "plus1" else 1 / max(p.tau, 1))


def fasgd(spec: Spec) -> Formula:
    gamma, beta, eps = spec.get("gamma", 0.9), spec.get("beta", 0.9), spec.get("eps", 1e-4)
    variant = spec.get("variant", "std")
    plus1 = spec.get("divisor", "plus1" if variant == "released" else "max1") == "plus1"

    def step(theta: Wide, s: State, p: Push) -> Wide:
        d = p.tau + 1 if plus1 else max(p.tau, 1)
        if variant == "released":
            s["v"] = 0.9 * s.get("v", 0.0) + 0.1 * np.abs(p.g)
            return np.asarray(theta - p.alpha * p.g / (d * (s["v"] + 0.001)))
        s["n"] = gamma * s.get("n", 0.0) + (1 - gamma) * p.g**2
        s["b"] = gamma * s.get("b", 0.0) + (1 - gamma) * p.g
        root = np.sqrt(np.maximum(s["n"] - s["b"] ** 2, 0) + eps)
        s["v"] = beta * s.get("v", 1.0) + (1 - beta) * (root if variant == "std" else 1 / root)
        return np.asarray(theta - p.alpha * p.g / (s["v"] * d))

    return step


def dcasgd(spec: Spec) -> Formula:
    adaptive = spec.get("adaptive", True)
    lambda0 = spec.get("lambda0") or (2.0 if adaptive else 0.04)
    m, eps = spec.get("momentum", 0.95), spec.get("eps", 1e-7)

    def step(theta: Wide, s: State, p: Push) -> Wide:
        zero = np.zeros_like(theta)
        first = zero if spec.get("initial_backup") == "zero" else s.setdefault("start", theta)
        if spec.get("backup", "pull") == "pull":
            backup = p.held if p.fetched else first
        else:
            backup = s.get(f"backup {p.client}", first)
        scale: Any = lambda0
        if adaptive:
            of = f"ms {p.client}" if spec.get("mean_square") == "client" else "ms"
            s[of] = m * s.get(of, zero) + (1 - m) * p.g**2
            scale = lambda0 / np.sqrt(s[of] + eps)
        new = theta - p.alpha * (p.g + scale * p.g**2 * (theta - backup))
        s[f"backup {p.client}"] = new
        return np.asarray(new)

    return step


def averaged(spec: Spec) -> Formula:
    t0, l1, l2 = spec.get("t0", 0.0), spec.get("l1", 0.0), spec.get("l2", 0.0)
    torch = spec.get("mode") == "torch"
    first = t0 + 2 if torch else np.floor(t0) + 1  # torch's μ lags a step

    def step(theta: Wide, s: State, p: Push) -> Wide:
        if torch:
            lambd, power = spec.get("lambd", 1e-4), spec.get("alpha", 0.75)
            eta = p.alpha / (1 + lambd * p.alpha * p.t) ** power
            kept = float(np.float32(1 - lambd * np.float32(eta)))  # torch's own rounding, the same at every step
            new = theta * kept - eta * (p.g + l2 * theta)
        else:
            shrunk = theta * (1 - p.alpha * l2) if l2 else theta - p.alpha * l1 * p.signs
            new = shrunk - p.alpha * p.g
        iterates = s.setdefault("iterates", [])
        if p.t + 1 >= first:
            s["sum"] = s.get("sum", 0.0) + new
            iterates.append(None)
        s["average"] = s["sum"] / len(iterates) if iterates else new
        return np.asarray(new)

    return step


def momentum(spec: Spec) -> Formula:
    gamma = spec.get("momentum", 0.9)

    def step(theta: Wide, s: State, p: Push) -> Wide:
        s["v"] = gamma * s.get("v", 0.0) + p.g
        return np.asarray(theta - p.alpha * (p.g + gamma * s["v"] if spec.get("nesterov") else s["v"]))

    return step


def async_nesterov(spec: Spec) -> Formula:
    gamma = spec.get("momentum", 0.99)

    def step(theta: Wide, s: State, p: Push) -> Wide:
        """θ is the look-ahead point w + d, d = γ (w − w⁻); the weights themselves are the state."""
        now, ahead = s.get("w", theta), s.get("d", 0.0)
        decayed = theta - now - ahead  # what weight decay has moved the look-ahead point by
        s["w"] = theta - p.alpha * (1 - gamma) * p.g
        s["d"] = gamma * (s["w"] - now - decayed)
        return np.asarray(s["w"] + s["d"])

    return step


def nadam(spec: Spec) -> Formula:
    beta1, beta2, eps = (spec.get(key, usual) for key, usual in (("beta1", 0.9), ("beta2", 0.999), ("eps", 1e-8)))

    def step(theta: Wide, s: State, p: Push) -> Wide:
        """m̂ is that of the next step, of which only the gradient is not known yet."""
        t = p.t + 1
        s["m"] = beta1 * s.get("m", 0.0) + (1 - beta1) * p.g
        s["s"] = beta2 * s.get("s", 0.0) + (1 - beta2) * p.g**2
        mean = beta1 * s["m"] / (1 - beta1 ** (t + 1)) + (1 - beta1) * p.g / (1 - beta1**t)
        return np.asarray(theta - p.alpha * mean / (np.sqrt(s["s"] / (1 - beta2**t)) + eps))

    return step


def rmsprop(spec: Spec) -> Formula:
    rho, eps = spec.get("decay", 0.99), spec.get("eps", 1e-8)

    def step(theta: Wide, s: State, p: Push) -> Wide:
        s["s"] = rho * s.get("s", 0.0) + (1 - rho) * p.g**2
        return np.asarray(theta - p.alpha * p.g / (np.sqrt(s["s"]) + eps))

    return step


def adagrad() -> Formula:
    def step(theta: Wide, s: State, p: Push) -> Wide:
        s["s"] = s.get("s", 0.0) + p.g**2
        return np.asarray(theta - p.alpha * p.g / (np.sqrt(s["s"]) + 1e-10))

    return step


def adam(spec: Spec) -> Formula:
    one, two = spec.get("beta1", 0.9), spec.get("beta2", 0.999)

    def step(theta: Wide, s: State, p: Push) -> Wide:
        s["m"] = one * s.get("m", 0.0) + (1 - one) * p.g
        s["s"] = two * s.get("s", 0.0) + (1 - two) * p.g**2
        m, v = s["m"] / (1 - one ** (p.t + 1)), s["s"] / (1 - two ** (p.t + 1))
        return np.asarray(theta - p.alpha * m / (np.sqrt(v) + 1e-8))

    return step


def gap_aware(spec: Spec) -> Formula:
    rho = spec.get("decay", 0.999)

    def step(theta: Wide, s: State, p: Push) -> Wide:
        s["largest"] = max(s.get("largest", 0.0), p.alpha)
        s["s"] = rho * s.get("s", 0.0) + (1 - rho) * p.g**2
        c = spec.get("c")
        if c is None:
            c = s["largest"] * np.sqrt(s["s"] / (1 - rho ** (p.t + 1))) + 1e-8
        return np.asarray(theta - p.alpha * p.g / (1 + np.abs(theta - p.held) / c))

    return step


def dana(spec: Spec) -> Formula:
    def step(theta: Wide, s: State, p: Push) -> Wide:
        v = s.setdefault("v", {})
        v[p.client] = spec.get("gamma", 0.9) * v.get(p.client, 0.0) + p.g
        return np.asarray(theta - p.alpha * v[p.client])

    return step


def dana_hands_out(spec: Spec) -> Callable[[Wide, State, Push], Wide]:
    return lambda theta, s, p: np.asarray(theta - p.alpha * spec.get("gamma", 0.9) * sum(s["v"].values()))


def rescaled() -> Formula:
    def step(theta: Wide, s: State, p: Push) -> Wide:
        counts, last = s.setdefault("counts", {}), s.setdefault("last", {})
        counts[p.client], last[p.client] = counts.get(p.client, 0) + 1, p.t + 1  # no clock: an update takes 1
        times = {client: last[client] / count for client, count in counts.items()}
        return np.asarray(theta - p.alpha * times[p.client] / np.mean([*times.values()]) * p.g)

    return step


def ringmaster(spec: Spec) -> Formula:
    def step(theta: Wide, s: State, p: Push) -> Wide | None:
        s["restarted"] = []
        if p.tau >= spec["threshold"]:
            return None
        if spec.get("stop"):  # whose delay has reached R by this step
            behind = [c for c, stamp in enumerate(p.stamps) if p.t + 1 - stamp >= spec["threshold"]]
            s["restarted"] = [c for c in behind if c != p.client]
        return np.asarray(theta - p.alpha * p.g)

    return step


FORMULAS: dict[str, Callable[[Spec], Formula]] = {
    "asgd": lambda spec: plain(lambda p: 1),
    "downpour": lambda spec: plain(lambda p: 1),
    "sasgd": sasgd,
    "exponential": lambda spec: plain(lambda p: float(np.exp(-spec["kappa"] * p.tau))),
    "average_staleness": lambda spec: plain(lambda p: 1 / spec["staleness"]),
    "delay_adaptive": lambda spec: plain(lambda p: (n := spec.get("n", p.clients)) / max(n, p.tau)),
    "fasgd": fasgd,
    "bfasgd": fasgd,
    "dcasgd": dcasgd,
    "averaged": averaged,
    "momentum": momentum,
    "async_nesterov": async_nesterov,
    "rmsprop": rmsprop,
    "adagrad": lambda spec: adagrad(),
    "adam": adam,
    "nadam": nadam,
    "gap_aware": gap_aware,
    "dana": dana,
    "ringmaster": ringmaster,
    "rescaled": lambda spec: rescaled(),
}
HAND_OUT = {"dana": dana_hands_out}


def start(spec: Spec) -> tuple[Formula, Callable[[Wide, State, Push], Wide] | None]:
    name = spec["name"]
    return FORMULAS[name](spec), HAND_OUT[name](spec) if name in HAND_OUT else None


def test_a_thousand_pushes_follow_the_formula(spec: Spec, follow: Callable[..., Any]) -> None:
    server = follow(spec, *start(spec)).server
    assert server.timestamp > 500
    assert server.finite


def test_a_hundred_pushes_of_one_client_follow_the_formula(spec: Spec, follow: Callable[..., Any]) -> None:
    assert follow(spec, *start(spec), pushes=100, clients=1).server.timestamp > 10


def test_times_that_are_given_rescale_the_step(make: Callable[[Spec], Any]) -> None:
    times, rng = [0.5, 1.0, 4.5], np.random.default_rng(0)
    server = make({"name": "rescaled", "lr": 0.3, "times": times})
    server.init(np.ones(50, np.float32), 3)
    theta = np.ones(50)
    for push in range(12):
        g = rng.standard_normal(50).astype(np.float32)
        server.apply_update(g, push * push % 3, push)
        theta = theta - 0.3 * times[push * push % 3] / 2 * g
        np.testing.assert_allclose(server.params, theta, rtol=0, atol=1e-5)


@pytest.mark.parametrize("c", [None, 0.02])
def test_the_gap_for_a_probe_follows_the_formula(c: float | None, make: Callable[[Spec], Any]) -> None:
    """C of the pushes so far: t of them, and the largest learning rate among these."""
    lr, rho, rng = {"name": "step", "base": 0.5, "every": 2, "factor": 0.5}, 0.9, np.random.default_rng(0)
    server = make({"name": "gap_aware", "lr": lr, "decay": rho, "c": c})
    server.init(np.ones(50, np.float32), 3)
    held, s = [np.ones(50)] * 3, np.zeros(50)
    for t in range(12):
        usual = c if c is not None else 0.5 * np.sqrt(s / (1 - rho**t)) + 1e-8 if t else 1.0
        gap = np.mean(np.abs(server.params - held[t % 3]) / usual)
        assert server.proxies(t % 3, 0) == {"gap": pytest.approx(gap, rel=1e-5)}, t
        g = rng.standard_normal(50).astype(np.float32)
        g[:5] = 0  # an input that is never lit
        server.apply_update(g, t % 3, t)
        s = rho * s + (1 - rho) * g.astype(np.float64) ** 2
        server.begins(t % 3, server.fetch(t % 3), server.timestamp)
        held[t % 3] = server.params.astype(np.float64)
    assert gap > 0

"""A rule's coefficients for many pushes at once are those for each of them, to the bit, whatever the learning rate."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

RATES: dict[str, Any] = {
    "a number": 0.05,
    "constant": {"name": "constant", "base": 0.05},
    "step": {"name": "step", "base": 0.05, "every": 7, "factor": 0.5},
    "exponential": {"name": "exponential", "base": 0.05, "factor": 0.9, "every": 5},
    "cosine": {"name": "cosine", "base": 0.05, "steps": 40, "final": 0.01},
    "inverse_power": {"name": "inverse_power", "base": 0.05, "lambd": 0.3, "power": 0.75},
    "own function": {"name": "own_rates:warm_up", "base": 0.05},
}
OWN = "def warm_up(t, base):\n    assert type(t) is int\n    return base * min(1.0, (t + 1) / 23)\n"


def fits(server: Any) -> bool:
    """Gap-Aware's C is of the largest α so far, which a call moves: it has no coefficients ahead."""
    return not hasattr(server, "_largest") or server.hyper.c is not None


def test_many_at_once_are_each_of_them(
    spec: dict[str, Any], make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_rates.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    rng = np.random.default_rng(0)
    t = np.concatenate([np.arange(60), rng.integers(0, 60, 40), [1000, 10**6, 2**31 + 5]])
    staleness = np.concatenate([np.minimum(np.arange(100), rng.integers(0, 60, 100)), [0, 999, 10**6]])
    for name, lr in RATES.items():
        if spec.get("mode") == "torch" and name != "a number":
            continue  # it has a schedule of its own
        server = make(spec | ({"inner": spec["inner"] | {"lr": lr}} if "inner" in spec else {"lr": lr}))
        server.init(np.ones(3, np.float32), 6)
        together = [np.broadcast_to(c, t.shape) for c in server.coefficients(t, staleness)]
        assert len(together) == len(server.rule.coefficients)
        assert {c.dtype for c in together} == {np.dtype(np.float32)}
        for i, one in enumerate(zip(t.tolist(), staleness.tolist(), strict=True)):
            alone = server.coefficients(*one)
            assert all(isinstance(c, np.float32) for c in alone)
            assert np.array(alone).tobytes() == np.array([c[i] for c in together]).tobytes(), (name, one)
        rates = np.broadcast_to(server.rate(t), t.shape)
        assert rates.tobytes() == np.array([server.rate(i) for i in t.tolist()], np.float64).tobytes(), name

"""What is asked of our servers and of users': fredsim/servers/checks.py."""

from typing import Any

import numpy as np
import pytest

from fredsim.errors import SimulationError
from fredsim.networks.layout import Layout
from fredsim.numerics.rules import Rule
from fredsim.servers.asgd import ASGD
from fredsim.servers.base import Rated
from fredsim.servers.checks import form_coefficients, trusted_rule
from fredsim.servers.elementwise import ElementwiseServer
from fredsim.servers.fasgd import FASGD
from fredsim.servers.sasgd import SASGD


class OwnSGD(ElementwiseServer):
    Hyper = Rated
    rule = ASGD.rule


def test_asgds_rule_keeps_its_word_in_a_class_of_a_users() -> None:
    """Rows whose gradient is zero are then left alone; another rule could divide by 0, or start from any state."""

    class OwnFASGD(FASGD):
        pass

    class OwnSASGD(OwnSGD):
        rule = SASGD.rule

    assert ASGD.rule.zero_keeps
    assert FASGD(lr=0.1).rule.zero_keeps
    assert trusted_rule(OwnSGD(lr=0.1)) is ASGD.rule
    assert not trusted_rule(OwnFASGD(lr=0.1)).zero_keeps
    assert SASGD.rule.zero_keeps
    assert not trusted_rule(OwnSASGD(lr=0.1)).zero_keeps
    assert trusted_rule(FASGD(lr=0.1)).zero_keeps


@pytest.mark.parametrize("server", [ASGD, OwnSGD])
def test_a_coefficient_that_is_not_finite(server: type[ElementwiseServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ours it makes the run diverge; of a user's class it is a mistake."""
    made = server(lr=0.1)
    made.init(np.zeros(3, np.float32), 2, Layout((("W", (3,)),)))
    monkeypatch.setattr(server, "coefficients", lambda *_: (np.float32(np.inf),))
    if server is ASGD:
        assert form_coefficients(made, 4, 1) == [np.inf]
    else:
        with pytest.raises(SimulationError, match="must be a number, finite in float32"):
            form_coefficients(made, 4, 1)


def _smoothed(theta: Any, mean: Any, g: Any, alpha: Any) -> Any:
    return theta - alpha * mean, mean + g


BEGINNINGS = {
    "masked": (
        {"mean": np.ma.MaskedArray([1.0, 2, 3], [False, False, True])},
        "gave 'mean' as a MaskedArray of float64 (3,)",
    ),
    "complex": ({"mean": np.full(3, 1 + 1j)}, "gave 'mean' as a ndarray of complex128 (3,)"),
    "one": (
        {"mean": np.ones(1)},
        "gave 'mean' as a ndarray of float64 (1,); it must be a number, or real numbers (3,)",
    ),
    "text": ({"mean": "0.5"}, "gave 'mean' as a str of <U3 ()"),
    "unknown": ({"maen": 0.5}, "names 'maen'; the rule's state is mean"),
    "a number": (0.5, "returned 0.5; it must return a dict"),
}


@pytest.mark.parametrize(("given", "says"), BEGINNINGS.values(), ids=BEGINNINGS)
def test_what_a_state_cannot_begin_with(given: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of masked arrays hidden values counted, a name that there is not began with 0, imaginary parts were lost."""

    class Own(OwnSGD):
        rule = Rule(_smoothed, state=("mean",))

        def initial_state(self) -> Any:
            return given

    with pytest.raises(SimulationError) as caught:
        Own(lr=0.1).init(np.zeros(3, np.float32), 2, Layout((("W", (3,)),)))
    assert says in str(caught.value)
    strided = np.repeat(np.array([3.0, 1, 2]), 2)[::2]
    for right, expected in ((np.array(0.5), [0.5] * 3), (strided[::-1], [2.0, 1, 3]), (2, [2.0] * 3)):
        monkeypatch.setattr(Own, "initial_state", lambda _, right=right: {"mean": right})
        made = Own(lr=0.1)
        made.init(np.zeros(3, np.float32), 2, Layout((("W", (3,)),)))
        assert made.arrays["mean"].tolist() == expected


def test_a_rule_of_ones_own_in_a_class_of_ours() -> None:
    """Whose `initial_state` names what the class's own rule has."""

    class Own(FASGD):
        rule = ASGD.rule

    Own(lr=0.1).init(np.zeros(3, np.float32), 2, Layout((("W", (3,)),)))

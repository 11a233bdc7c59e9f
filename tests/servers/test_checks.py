"""What is asked of our servers and of users': fredsim/servers/checks.py."""

import numpy as np
import pytest

from fredsim.errors import SimulationError
from fredsim.networks.layout import Layout
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

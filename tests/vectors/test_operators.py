"""Each operator and loss of a network gives the known answers of operators.txt: its definition, and its kernels."""

from typing import Any

import numpy as np
import pytest

from tests.conftest import needs_cuda
from tests.vectors import make_operators
from tests.vectors.drive_operators import FILES, Definitions, DeviceKernels, Kernels
from tests.vectors.test_vectors import arrays, check_file, differing, records

RECORDS = [*records(make_operators.FILE)]
ANSWERS = [pytest.param(*one, id=f"{one[0]}-{one[1]}") for one in RECORDS]


@pytest.mark.parametrize(("driven", "name", "lines"), ANSWERS)
def test_the_definition_has_the_known_answer(driven: str, name: str, lines: str) -> None:
    del name
    check(Definitions(), driven, lines, set())


@pytest.mark.parametrize("driver", [Kernels(), pytest.param(DeviceKernels(), marks=needs_cuda)], ids=["numba", "cuda"])
@pytest.mark.parametrize(("driven", "name", "lines"), [one for one in ANSWERS if one.values[0] != "drawn"])
def test_the_kernels_have_the_known_answer(driven: str, name: str, lines: str, driver: Kernels) -> None:
    alone = {"dx0", "dx1", "dx2"} if driven == "keyed" else {"dx0"} if name.startswith("BatchNorm") else set()
    if driven == "keyed" and isinstance(driver, DeviceKernels):  # outputs are not kept where something is drawn
        alone.add("y")
    check(driver, driven, lines, alone)


def check(driver: Any, driven: str, lines: str, hidden: set[str]) -> None:
    given, answers = arrays(lines)
    with np.errstate(all="ignore"):
        found = getattr(driver, driven)(**given)
    assert found.keys() == answers.keys() - hidden
    wrong = {key: differing(np.ascontiguousarray(found[key]), answers[key]).tolist() for key in found}
    assert not any(wrong.values()), wrong


def test_every_operator_and_loss_has_answers() -> None:
    """Positions and constants are not computed."""
    named = {name for file in FILES for name in file.__all__}
    seen = {name.partition("-")[0] for driven, name, _ in RECORDS if driven != "meeting"}
    losses = {"BinaryCrossEntropy", "CrossEntropy", "MeanSquaredError"}
    assert seen == (named - {"ACTIVATIONS", "Constant", "Pointwise"}) | losses


def test_the_file_is_what_make_writes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    check_file(make_operators, request.config.getoption("--slow"), monkeypatch, "operator", "loss")

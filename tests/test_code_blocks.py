"""Every code block and command of the manual works as it stands there, or one of these lists says why it is not tried."""

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from fredsim.cli import app
from tests.pages import Command, Item, Reader, items, pages, spans

INSTALLS = "installs packages; .ci/run does it"
CLUSTER = "needs a cluster that goes on; tests/test_dask.py and test_live_cluster.py have one"
DEVICE = "needs a device, or Triton's interpreter; tests/test_cuda.py runs there"

#: What is not tried, by a part of it, and why.
NOT_TRIED: dict[str, dict[str, str]] = {
    "README.md": {"-m pip install": INSTALLS},
    "docs/cluster.md": {"dask ": CLUSTER, "--dask": CLUSTER, "Cluster(": CLUSTER, "helm ": CLUSTER, "kubectl ": CLUSTER},
    "docs/devices.md": {"pip install": INSTALLS, "backend=cuda": DEVICE},
    "docs/editors.md": {"--install-completion": "writes into the home folder"},
    "docs/live.md": {"pip install": INSTALLS, "dask ": CLUSTER, "--dask": CLUSTER},
    "docs/own_data.md": {"torchvision:": "takes the network"},
    "docs/verify.md": {"git clone": "takes the network", "-m venv": INSTALLS, "verify ../elsewhere": "needs what was installed before it"},
    "docs/tutorial.md": {"pip install": INSTALLS, "-m venv": INSTALLS},
}

#: Words that make a command shorter, which then prints nothing on its page.
SHORTER: dict[str, dict[str, str]] = {
    "docs/live.md": {"fredsim live": "iterations=200"},
}

#: Experiments that no command of their page runs, and why: they are resolved.
SHOWN: dict[str, dict[str, str]] = {
    "README.md": {"example.yaml": "takes minutes, and MNIST; the figure above it is of such a run"},
}

#: Packages that not everybody has, and the pages that take them.
NEEDS = {"docs/models.md": "torch", "docs/live.md": "distributed"}


def reason(item: Item) -> str | None:
    found = [why for part, why in NOT_TRIED.get(item.page, {}).items() if part in item.text]
    return found[0] if found else None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder, in which a page's modules are looked up; they are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", [page for page in pages() if items(page)])
def test_what_a_page_shows_works(page: str, folder: Path, command: Command) -> None:
    del folder
    if page in NEEDS and importlib.util.find_spec(NEEDS[page]) is None:
        pytest.skip(f"{NEEDS[page]} is not installed")
    reader = Reader(command, SHORTER.get(page, {}))
    for item in items(page):
        if reason(item) is None:
            reader.do(item)
        elif item.language == "python":
            compile(item.text, page, "exec")
    reader.end()
    assert [name for name in reader.experiments if name not in reader.used] == [*SHOWN.get(page, {})]

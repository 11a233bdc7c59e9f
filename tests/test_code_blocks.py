"""Every code block and command of the manual works as it stands there, or a list says why it is not tried."""

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from docs.generate.notebook import FOLDER, execute, read, texts
from fredsim.cli import app
from tests.pages import Command, Item, Reader, items, pages, spans

INSTALLS = "installs packages; .ci/run does it"
CLUSTER = "needs a cluster that goes on; tests/test_dask.py and test_live_cluster.py have one"
DEVICE = "needs a device, or a C++ compiler; tests/test_cuda.py runs there"

#: What is not tried, by a part of it, and why.
NOT_TRIED: dict[str, dict[str, str]] = {
    "README.md": {"-m pip install": INSTALLS},
    "docs/cluster.md": {
        "dask ": CLUSTER,
        "--dask": CLUSTER,
        "Cluster(": CLUSTER,
        "helm ": CLUSTER,
        "~/dask": "writes into the home folder",
        "distributed:": "a file of Dask's; tests/test_live_cluster.py takes it",
        "kubectl ": CLUSTER,
    },
    "docs/devices.md": {"backend=cuda": DEVICE},
    "docs/editors.md": {"--install-completion": "writes into the home folder"},
    "docs/installing.md": {".venv": INSTALLS, "install": INSTALLS},
    "docs/live.md": {"dask ": CLUSTER, "--dask": CLUSTER},
    "docs/own_data.md": {"torchvision:": "takes the network"},
    "docs/verify.md": {
        "git clone": "takes the network",
        "-m venv": INSTALLS,
        "verify ../elsewhere": "needs what was installed before it",
    },
    "docs/problems.md": {"jax": "needs JAX; tests/test_problems.py has a problem in it"},
    "docs/tutorial.md": {"pip install": INSTALLS, "-m venv": INSTALLS},
}

#: Words that make a command shorter, which then prints nothing on its page.
SHORTER: dict[str, dict[str, str]] = {
    "docs/data.md": {"fredsim run": "iterations=20 --quiet"},
    "docs/fast.md": {"fredsim run": "--quiet", "quickstart --jobs": "iterations=20"},
    "docs/gallery.md": {"fredsim run race.yaml": "seconds=16 --quiet"},
    "docs/live.md": {"fredsim live": "iterations=200"},
    "docs/own_data.md": {"data.name=npz:sums.npz": "iterations=20 backend=numpy --quiet"},
    "docs/pipelines.md": {
        "fredsim run": "--quiet",
        "run pipeline.yaml stages.delay=pipemare": "iterations=220",  # 100 of them synchronous
        'run pipeline.yaml "stages.delay=': "iterations=40",
        'run pipeline.yaml "server=': "iterations=40",
        "run pipeline.yaml clients.count=4": "iterations=40",
        "run current.yaml": "iterations=40",
    },
    "docs/training_script.md": {"clients.count=16": "iterations=20 --quiet"},
    "docs/verify.md": {"iterations=200000": "iterations=30000 --checkpoint 0.2"},
    "docs/models.md": {
        "fredsim run images.yaml": "iterations=20 backend=numpy --quiet",
        "fredsim run sums.yaml": "iterations=20 backend=numpy --quiet",
        "fredsim run dropped.yaml": "iterations=20 --quiet",
        "fredsim run tuned.yaml": "iterations=20 --quiet",
        "fredsim run normed.yaml": "iterations=20 --quiet",
    },
}

#: Experiments that no command of their page runs, and why: they are resolved.
SHOWN: dict[str, dict[str, str]] = {
    "README.md": {"example.yaml": "takes minutes, and MNIST"},
}

#: Packages that not everybody has, and the pages that take them.
NEEDS = {
    "docs/gallery.md": ("plotly", "pyarrow"),
    "docs/losses.md": ("torch",),
    "docs/models.md": ("torch",),
    "docs/live.md": ("distributed",),
    "docs/problems.md": ("torch",),
    "docs/training_script.md": ("torch",),
    "docs/export.md": ("tensorboard", "mlflow"),
}


#: Words that stand for something in a synopsis: FILE, KEY=VALUE, DIR…
PLACEHOLDER = re.compile(r"[A-Z][A-Z.,-]*…?(=VALUE)?|or|…")


def reason(item: Item) -> str | None:
    found = [why for part, why in NOT_TRIED.get(item.page, {}).items() if part in item.text]
    return found[0] if found else None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, in which a page's modules are looked up."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", [page for page in pages() if items(page) or spans(page)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow and SQLAlchemy among themselves
def test_what_a_page_shows_works(page: str, folder: Path, command: Command) -> None:
    del folder
    if missing := [name for name in NEEDS.get(page, ()) if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{' and '.join(missing)}: not installed")
    reader = Reader(command, SHORTER.get(page, {}))
    for item in items(page):
        if reason(item) is None:
            reader.do(item)
        elif item.language == "python":
            compile(item.text, page, "exec")
    reader.end()
    untried = {item.text for item in items(page) if reason(item) is not None and item.text.startswith("fredsim ")}
    for typed in sorted(spans(page) | untried):
        check_span(typed, command)
    assert [name for name in reader.experiments if name not in reader.used] == [*SHOWN.get(page, {})]


def check_span(typed: str, command: Command) -> None:
    """Check that there is such a command with such options; run it where it only prints, and says what."""
    words = shlex.split(typed.replace("[", "").replace("]", ""), comments=True)[1:]
    name, rest = words[0], [word for word in words[1:] if not PLACEHOLDER.fullmatch(word)]
    group: Any = get_command(app)
    assert name in group.commands or name.startswith("-"), typed
    taker = group.commands.get(name, group)
    known = {"--help", *(option for one in taker.params for option in [*one.opts, *one.secondary_opts])}
    assert [word for word in words if word.startswith("-") and word not in known] == [], typed
    if name == "list" or (name == "show" and rest):
        assert command(name, *rest)[0] == 0, typed
    if name == "run" and rest and len(rest) == len(words) - 1 and not rest[0].endswith(".yaml"):
        assert command("show", rest[0])[0] == 0, typed


def test_the_lists_are_of_what_is_there() -> None:
    """No entry is stale, and what is made shorter prints nothing, since it would print something else."""
    for listed in (NOT_TRIED, SHORTER):
        for page, parts in listed.items():
            for part in parts:
                found = [item for item in items(page) if part in item.text]
                assert found, (page, part)
                assert listed is NOT_TRIED or not any(item.prints for item in found), (page, part)
    assert {*NOT_TRIED, *SHORTER, *SHOWN, *NEEDS} <= {*pages()}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_prints_what_it_says(path: Path, folder: Path) -> None:
    """`python -m docs.generate.notebook` keeps what comes out, where that is another on purpose."""
    del folder
    kept = read(path)
    assert texts(execute(kept)) == texts(kept)

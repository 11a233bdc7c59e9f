"""What shells offer for a word that was begun."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fredsim.cli import app
from fredsim.compressors import COMPRESSORS
from fredsim.config.choices import Sampling
from fredsim.config.figures.options import KINDS, STYLES
from fredsim.config.shipped import shipped
from fredsim.dispatchers.gates import GATES
from fredsim.servers import SERVERS
from fredsim.servers.fasgd import FASGD
from fredsim.servers.sync import Sync
from fredsim.show.own_templates import OWN

Offered = Callable[..., list[str]]


def asked() -> int | str | None:
    """Let the command answer the shell; return its exit code."""
    with pytest.raises(SystemExit) as ended:
        app(prog_name="fredsim")
    return ended.value.code


@pytest.fixture
def offered(small_yaml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Offered:
    """Return what bash is offered for the last of these words, in a folder with `small.yaml`."""
    assert small_yaml.name == "small.yaml"

    def call(*words: str) -> list[str]:
        monkeypatch.setenv("_FREDSIM_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(["fredsim", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        assert asked() == 0
        output, messages = capsys.readouterr()
        assert messages == ""
        return output.splitlines()

    return call


def test_figures(offered: Offered) -> None:
    assert offered("plot", "folder", "--kind", "") == [*KINDS]
    assert offered("plot", "folder", "--kind", "s") == ["staleness", "shards"]
    assert offered("plot", "folder", "--style", "") == [*STYLES]
    assert offered("plot", "folder", "--x", "u") == ["updates"]
    assert offered("plot", "folder", "--kind", "ends", "--x", "pu") == ["pushes"]
    assert "clients.batch_size" in offered("plot", "folder", "--by", "clients.")


def test_columns_are_those_that_the_runs_have(offered: Offered) -> None:
    assert offered("plot", "here", "--y", "v") == ["validation_error", "validation_loss"]
    folder = Path("here/seed=0-01234567")
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text("iteration,v_mean,digest\n0,1.0,0\n", encoding="utf-8")
    assert offered("plot", "here", "--y", "v") == ["v_mean", "validation_error", "validation_loss"]


def test_nothing_is_offered_that_a_shell_would_take_apart(offered: Offered) -> None:
    """Names of files and of columns may come from somebody else; zsh evaluates what it is offered."""
    folder = Path("here")
    folder.mkdir()
    bad = (
        "$(x)",
        "\\$(x)",
        "`x`",
        "a b",
        "a'b",
        'a"b',
        "a;b",
        "a\nb",
        "a\x1b",
        "a*",
        "a|b",
        "!a",
        "~a",
        "(a)",
        "{a,b}",
    )
    for name in bad:
        Path(f"v{name}.yaml").write_text("", encoding="utf-8")
        Path(f"v{name}").mkdir()
    Path("vλ-1.yaml").write_text("", encoding="utf-8")
    assert offered("run", "v") == ["vλ-1.yaml"]
    columns = [name.replace('"', '""') for name in bad if "\n" not in name]
    header = ",".join(["iteration", *(f'"v{name}"' for name in columns), "v_mean", "digest"])
    (folder / "metrics.csv").write_text(f"{header}\n", encoding="utf-8")
    assert offered("plot", "here", "--y", "v") == ["v_mean", "validation_error", "validation_loss"]
    Path("secret").write_text("v_secret", encoding="utf-8")
    (folder / "metrics.csv").unlink()
    (folder / "metrics.csv").symlink_to(Path("secret").absolute())
    assert offered("plot", "here", "--y", "v") == ["validation_error", "validation_loss"]


def test_names(offered: Offered) -> None:
    assert offered("run", "quick") == ["quickstart"]
    assert offered("run", "") == ["small.yaml", *shipped()]
    Path("mine.yaml").mkdir()
    assert offered("show", "min") == ["mine.yaml", "mine.yaml/"]
    assert offered("list", "serv") == ["servers"]
    assert offered("list", "top") == ["top_k"]
    assert offered("reproduce", "fa") == ["fasgd"]
    assert offered("verify", "folder", "--backend", "num") == ["numpy", "numba"]
    assert offered("export", "folder", "--to", "") == ["tensorboard", "mlflow"]
    assert offered("new", "mine", "--own", "") == [*OWN]
    assert offered("new", "mine", "--own", "ne") == ["network"]


def test_files_as_their_paths_were_begun(offered: Offered) -> None:
    for folder in ("sub", ".hidden"):
        Path(folder).mkdir()
    for name in ("example.yml", "sub/one.yaml", "sub/two.yml", "sub/other.txt"):
        Path(name).touch()
    assert offered("run", "./ex") == ["./example.yml"]
    assert offered("run", "./") == ["./example.yml", "./small.yaml", "./sub/"]
    assert offered("run", "sub/") == ["sub/one.yaml", "sub/two.yml"]
    assert offered("run", ".//sub/../sub/t") == [".//sub/../sub/two.yml"]
    here = Path.cwd().as_posix()
    assert offered("run", f"{here}/sm") == [f"{here}/small.yaml"]
    assert [*filter(None, offered("run", "nothing/"))] == []


def test_keys_and_values(offered: Offered) -> None:
    words = ("run", "small.yaml")
    assert offered(*words, "server.name", "=") == offered(*words, "server.name", "=", "") == [*SERVERS]
    assert offered(*words, "server.name", "=", "fas") == ["fasgd"]
    assert offered(*words, "compress.name", "=", "") == [*COMPRESSORS]
    assert offered(*words, "dispatcher.fetch", "=", "") == [*GATES]
    assert offered(*words, "server.name", "=", "fasgd", "server.variant", "=", "") == ["std", "released", "printed"]
    assert offered(*words, "clients.sampling=i") == ["clients.sampling=iid"]  # as other shells have it
    assert offered(*words, "clients.samp") == [
        "clients.sampling=", *(f"clients.sampling={one}" for one in Sampling.__args__),  # type: ignore[attr-defined]
    ]  # fmt: skip
    assert offered(*words, "clients.cou") == ["clients.count=", "clients.count=8", "clients.count=32"]
    Path("swept.yaml").write_text("sweep: {clients.count: [2, 5]}\n", encoding="utf-8")
    assert offered("run", "swept.yaml", "clients.count", "=") == ["2", "5", "32"]
    assert offered(*words, "seed", "=", "0", "clients.sampling", "=", "s") == ["sequential", "shuffled"]
    assert "events" in offered(*words, "e")


def test_keys_are_those_of_the_servers_that_an_experiment_has(offered: Offered) -> None:
    own = [f"server.{key}" for key in sorted(["name", *FASGD.Hyper.model_fields])]
    assert offered("run", "small.yaml", "server.") == ["server.lr", "server.name", "server.weight_decay"]
    assert offered("run", "small.yaml", "server.name", "=", "fasgd", "server.") == own
    assert offered("run", "small.yaml", "'server={name: fasgd, lr: 0.1}'", "server.") == own
    Path("several.yaml").write_text("sweep: {server: [{name: sync}, {name: fasgd}]}\n", encoding="utf-8")
    both = {f"server.{key}" for key in ("name", *FASGD.Hyper.model_fields, *Sync.Hyper.model_fields)}
    assert offered("run", "several.yaml", "server.") == sorted(both)


@pytest.mark.parametrize("text", ["a: [", "sweep: 1\ncases: 2\nserver: 3\n", "", "sweep: {server: [1]}\n", "\x00"])
def test_a_damaged_file_offers_the_keys_of_all(text: str, offered: Offered) -> None:
    Path("damaged.yaml").write_text(text, encoding="utf-8")
    assert {"server.name", "server.lr", "server.variant"} <= {*offered("run", "damaged.yaml", "server.")}
    assert {"server.name", "server.lr", "server.variant"} <= {*offered("run", "no_such_file", "server.")}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The function that bash gets from fredsim completes a word."""
    monkeypatch.setenv("_FREDSIM_COMPLETE", "source_bash")
    assert asked() == 0
    script = capsys.readouterr().out
    program = tmp_path / "fredsim"
    python = "from fredsim.cli import app; app(prog_name='fredsim')"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{python}"\n', encoding="utf-8")
    program.chmod(0o755)
    ask = "COMP_WORDS=(fredsim plot folder --kind ma); COMP_CWORD=4; _fredsim_completion fredsim"
    shown = 'printf "%s\\n" "${COMPREPLY[@]}"'
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    del environment["_FREDSIM_COMPLETE"]
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\n{ask}\n{shown}"], check=True, capture_output=True, text=True,
        env=environment,
    )  # fmt: skip
    assert done.stdout == "matrix\n"

"""`fredsim new`: a commented experiment to start from, whose comments are the keys' own descriptions."""

from __future__ import annotations

import inspect
import os
import shlex
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fredsim.config.clients import Clients
from fredsim.config.data import Data, Glyphs, LeastSquares, Modular, Quadratic, Text
from fredsim.config.document import Document, dump_yaml
from fredsim.config.experiment import Evaluation, Experiment
from fredsim.config.models import LinearChoice, MlpChoice
from fredsim.config.plain_data import checked
from fredsim.config.registry import KNOWN, find_class
from fredsim.config.sections import DispatcherChoice
from fredsim.config.sweep.expansion import expand
from fredsim.config.yaml.plain_yaml import parse_yaml
from fredsim.config.zoo import GptChoice, ResnetChoice
from fredsim.errors import ConfigError, OutputError, nearest, visible
from fredsim.hyper import Configurable
from fredsim.plugins.attribute_docs import meanings
from fredsim.plugins.modules import look_in, module_file, parameters_of
from fredsim.plugins.references import identifier
from fredsim.runs.single.opening import check
from fredsim.show.catalogue.listing import own_text
from fredsim.show.own_templates import OWN
from fredsim.system.files import write_atomic, write_errors
from fredsim.system.given import real_path

__all__ = ["write_experiment"]

WIDTH = 100  # of comments
#: Learning rates with which servers learn `digits` from minibatches of 4; for the others USUAL_RATE.
RATES = {
    "adam": 0.003, "nadam": 0.003, "rmsprop": 0.003, "sign_majority": 0.003, "fasgd": 0.01, "bfasgd": 0.01,
    "momentum": 0.01, "adagrad": 0.03, "dana": 0.03,
}  # fmt: skip
USUAL_RATE = 0.1
#: Those of the experiments with a loss or a problem of one's own.
RATES_OF_OWN = {"loss": 0.01, "problem": 0.001}
#: Values of the other hyper-parameters that have no default.
VALUES: dict[str, Any] = {"kappa": 0.2, "staleness": 8.0, "batch": 4, "threshold": 8, "n": 4, "q": 1.5}
OTHER_DATA: dict[str, type[BaseModel]] = {
    "glyphs": Glyphs, "least_squares": LeastSquares, "modular": Modular, "quadratic": Quadratic
}  # fmt: skip
COMMANDS = {
    "fredsim run {file}": "runs it, into results/{name}",
    "fredsim run {file} server.lr={twice} seed=1": "runs it with other values",
    "fredsim show {file}": "checks it, and prints it with every default",
    "fredsim list": "names all servers, data sets, … that it may use",
}
SWEEP = """\

# Every combination of these values is a run; `fredsim run {file} --jobs 2` does two at a time.
#sweep:
#  seed: [0, 1, 2]
#  server.lr: [{half}, {rate}, {twice}]
"""

Given = Mapping[str, Any]


def write_experiment(
    path: Path, server: str, data: str, kind: str | None = None, given: Collection[str] = ()
) -> list[Path]:
    """Write a commented experiment with this server and data set to a new file; return what was written.

    `kind` is a kind of class or function of one's own (OWN), with which a module is written beside the experiment, and
    named after it; `given` are the options that were given.
    Raises ConfigError if something does not exist or does not fit together, OutputError if a file is there, or cannot
    be made, or if another module would be imported in the place of the new one.
    """
    look_in(path.parent)
    if kind is None:
        _write(path, server, data, {})
        return [path]
    if kind not in OWN:
        raise ConfigError(f"--own is {visible(kind)!r}{nearest(kind, OWN)} (known: {', '.join(OWN)})")
    own, module = OWN[kind], path.with_name(f"{identifier(f'{path.stem}_{kind}')}.py")
    if (replaced := "data" if own.part == "problem" else own.part) in given:
        raise ConfigError(f"--{replaced} is given, and --own {kind} writes what takes its place; leave one of them out")
    if own.one_label and (data == "modular" or data.startswith("text:")):
        what = f"--own {kind} writes one for samples with a label each, and those of --data {visible(data)} have many"
        raise ConfigError(f"{what}; choose other data, such as glyphs")
    other = module_file(module.stem)
    if other is not None and real_path(other) != real_path(module):
        what = f"{module}: another module would be imported in its place, {other}, where fredsim looks first"
        raise OutputError(f"{what}; choose another name for the experiment")
    _write_new(module, own.source)
    try:
        _write(path, server, data, {own.part: own.keys(f"{module.stem}:{own.name}")})
    except BaseException:
        module.unlink()
        raise
    return [path, module]


def _write_new(path: Path, text: str) -> None:
    """Write a new file. Raises OutputError if it is there, or cannot be made."""
    if os.path.lexists(path):
        raise OutputError(f"{path}: is there already, and is not overwritten; choose another name")
    with write_errors(path, "choose another place for it"):
        write_atomic(path, text)


def _write(path: Path, server: str, data: str, own: Mapping[str, Given]) -> None:
    """Write the experiment; `own` are keys that name something of one's own, by part."""
    server = own.get("server", {}).get("name", server)
    rate = next((RATES_OF_OWN[part] for part in own if part in RATES_OF_OWN), RATES.get(server, USUAL_RATE))
    words: dict[str, Any] = {"name": visible(path.stem), "file": visible(shlex.quote(path.as_posix()))}
    words |= {"half": rate / 2, "rate": rate, "twice": 2 * rate}
    text = _heading(words) + "".join(_sections(server, data, rate, own)) + SWEEP.format(**words)
    (run,) = expand(Document({"name": path.stem} | parse_yaml(text, str(path)), "new")).runs
    if server in KNOWN["server"]:  # of one's own Python may not know what it takes
        check(run.experiment, run.place)
    _write_new(path, text)


def _heading(words: Mapping[str, Any]) -> str:
    """Return the first comment of the file, which says what can be done with it."""
    commands = [(command.format(**words), does.format(**words)) for command, does in COMMANDS.items()]
    width = max(len(command) for command, _ in commands)
    lines = [
        f"{words['name']}: say here what you want to find out; the results keep this comment.",
        "",
        *(f"  {command:<{width}}   {does}" for command, does in commands),
        "",
        "A key behind a # has its default. Remove the # to give it another value.",
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines) + "\n"


def _sections(server: str, data: str, rate: float, own: Mapping[str, Given]) -> Iterator[str]:
    """Yield the parts of the file; `own` are keys that name something of one's own, by part."""
    yield _keys(Experiment, {"iterations": 2000, "seed": 0}, only=("iterations", "seed"))
    clients: dict[str, Any] = {"count": 8, "batch_size": 1 if data == "quadratic" else 4}
    only: Sequence[str] | None = None
    if "problem" in own:
        yield _section(
            "problem", "What is trained and evaluated, in place of data, model and loss.", _own(own["problem"])
        )
        clients, only = {"count": 8}, ("count", "local_steps", "optimizer", "prox", "clip", "noise")
    else:
        yield from _what_is_learned(data, own)
    written = _keys(Clients, {**clients, **own.get("clients", {})}, only=only, indent=2)
    yield _section("clients", "The clients, which compute gradients.", written)
    keys = ("name", "wait", "push", "fetch", "dropped_push")
    said = {"name": "Which one: `fredsim list dispatchers`."}
    dispatcher = _keys(DispatcherChoice, {"name": "uniform"}, said, only=keys, indent=2)
    yield _section("dispatcher", meanings(Experiment)["dispatcher"], dispatcher)
    yield _section("server", *_server(server, rate))
    evaluation = {"every": 100, **own.get("evaluation", {})}
    yield _section("evaluation", meanings(Experiment)["evaluation"], _keys(Evaluation, evaluation, indent=2))


def _own(keys: Given) -> str:
    """Return the keys of a class or a function of one's own, and of its arguments."""
    name = _written("name", keys["name"], "The module beside this file, and what is in it.", 2)
    return name + "".join(_written(key, value, "", 2) for key, value in keys.items() if key != "name")


def _what_is_learned(data: str, own: Mapping[str, Given]) -> Iterator[str]:
    """Yield data, model and loss."""
    source: type[BaseModel] = Text if data.startswith("text:") else OTHER_DATA.get(data, Data)
    if "data" in own:
        yield _section("data", "What is learned.", _own(own["data"]))
    else:
        said = {"name": "Which data set: `fredsim list datasets`."}
        keys = _keys(source, {"name": data}, said, indent=2, but=("sha256",))
        yield _section("data", "What is learned.", keys)
    said = {"name": "Which model: `fredsim list models`."}
    if "model" in own:
        model = _own(own["model"])
    elif data == "mishchenko" or source in {LeastSquares, Quadratic}:
        model = _keys(LinearChoice, {"name": "linear"}, {"name": "The model."}, indent=2)
    elif source in {Modular, Text}:
        model = _keys(GptChoice, {"name": "gpt", "width": 32, "layers": 1}, said, indent=2)
    elif source is Glyphs:
        model = _keys(ResnetChoice, {"name": "resnet", "width": 8}, said, indent=2)
    else:
        model = _keys(MlpChoice, {"name": "mlp", "hidden": [32]}, said, indent=2)
    yield _section("model", "The model that is trained.", model)
    if "loss" in own:
        yield _section("loss", "What training makes small.", _own(own["loss"]))


def _server(server: str, rate: float) -> tuple[str, str]:
    """Return a server's idea, and its keys. Raises ConfigError if there is no such server, or too little is known."""
    try:
        found = find_class("server", server)
    except ConfigError as error:
        raise ConfigError(f"server: {error}") from None
    idea = own_text(found, "idea") or (found.__doc__ or "").strip().partition("\n")[0]
    said = {"name": "Which update rule: `fredsim list servers`."}
    name = _written("name", server, said["name"], 2)
    values = {"lr": rate, **VALUES}
    if issubclass(found, Configurable):
        given = {key: values[key] for key, field in found.Hyper.model_fields.items() if key in values
                 if field.is_required() or key == "lr"}  # fmt: skip
        return idea, name + _keys(found.Hyper, given, indent=2)
    parameters = (parameters_of(found) or {}).values()
    plain = [one for one in parameters if one.kind in {one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY}]
    empty = inspect.Parameter.empty
    keys = [_written(one.name, values.get(one.name, 0.1), "", 2) for one in plain if one.default is empty]
    keys += [_default(one) for one in plain if one.default is not empty]
    return idea, "".join([name, *keys])


def _default(parameter: inspect.Parameter) -> str:
    """Return a parameter with its default as a comment; nothing if that is no plain data, or takes several lines."""
    try:
        value = checked(parameter.default, (parameter.name,), "server")
    except ConfigError:
        return ""
    text = _written(parameter.name, value, "", 2, given=False)
    return text if text.count("\n") == 1 else ""


def _section(key: str, meaning: str, keys: str) -> str:
    return f"\n{_comment(meaning[:1].upper() + meaning[1:], 0)}{key}:\n{keys}"


def _keys(
    model: type[BaseModel], given: Given, said: Mapping[str, str] | None = None, only: Sequence[str] | None = None,
    but: Sequence[str] = (), indent: int = 0,
) -> str:  # fmt: skip
    """Return the keys of a model, each below its meaning; those not given are comments with their defaults."""
    meaning, lines = meanings(model) | dict(said or {}), []
    for name, field in model.model_fields.items():
        if name in but or (only is not None and name not in only):
            continue
        if name in given:
            lines.append(_written(name, given[name], meaning.get(name, ""), indent))
        elif not field.is_required():
            default = field.get_default(call_default_factory=True)
            value = default.model_dump() if isinstance(default, BaseModel) else default
            lines.append(_written(name, value, meaning.get(name, ""), indent, given=False))
    return "".join(lines)


def _written(name: str, value: Any, meaning: str, indent: int, *, given: bool = True) -> str:
    line = dump_yaml({name: value}).removesuffix("\n")
    line = line[1:-1] if line.startswith("{") else line
    return f"{_comment(meaning, indent)}{' ' * indent}{'' if given else '#'}{line}\n"


def _comment(text: str, indent: int) -> str:
    lines = textwrap.wrap(text, WIDTH - indent - 2, break_long_words=False, break_on_hyphens=False)
    return "".join(f"{' ' * indent}# {line}\n" for line in lines)

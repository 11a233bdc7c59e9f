"""Resolves plain data into an experiment: checks it, fills in every default, reports problems with their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from pydantic import ValidationError

from fredsim.config.document import Document, PlaceOf, Problem, Problems, flatten, problems_at, value_at
from fredsim.config.experiment import Experiment, PluginChoice, Published
from fredsim.config.metrics import columns_of, is_column, metric_problems
from fredsim.config.partition import Iid, with_file_digest
from fredsim.config.registry import KNOWN, Kind, required_keys, resolve_hyper
from fredsim.dispatchers.gates import spelled_out
from fredsim.errors import ConfigError, FredsimError, SimulationError, nearest
from fredsim.hyper import REQUIRED, explain, fields_of

__all__ = ["KIND_OF_KEY", "LENGTHS", "check_batch", "for_each_run", "in_run", "placed", "resolve", "with_place"]

LENGTHS = ("iterations", "updates", "epochs", "seconds")
LONGEST_LABEL = 160  # the most characters of a run's label in a message

Run = TypeVar("Run")
Done = TypeVar("Done")
AnyError = TypeVar("AnyError", bound=FredsimError)


def resolve(data: Mapping[str, Any], place: PlaceOf | None = None) -> Experiment:
    """Return the frozen experiment that plain data describes, with every default filled in.

    Raises ConfigError, which names file, line, key, value and remedy; several problems are on a line each.
    """
    place = place or Document(dict(data)).place
    if data.get("problem") is not None:
        beside = [key for key in ("data", "model", "loss") if data.get(key) is not None]
        what = "is given beside problem, which takes the place of data, model and loss; leave one of them out"
        if beside:
            raise problems_at([((key,), what) for key in beside], place)
    try:
        experiment = Experiment.model_validate(data)
    except ValidationError as error:
        raise problems_at(map(_with_hint, explain(error, Experiment)), place) from None
    lengths = [key for key in LENGTHS if getattr(experiment, key) is not None]
    if len(lengths) != 1:
        found = f"both {' and '.join(lengths)} are given" if lengths else "is missing"
        remedy = f"{found}; give one of iterations, updates, epochs and seconds"
        raise problems_at([((lengths[0] if lengths else "iterations",), remedy)], place)
    update: dict[str, Any] = {
        key: _resolve_plugin(key, plugin, place)
        for key in ("server", "dispatcher", "compress", "average")
        if (plugin := getattr(experiment, key)) is not None
    }
    gates = {key: _resolve_gate(key, getattr(experiment.dispatcher, key), place) for key in ("push", "fetch")}
    update["dispatcher"] = update["dispatcher"].model_copy(update=gates)
    of_problem = experiment.problem is not None
    parts = ("data", experiment.data), ("problem" if of_problem else "model", experiment.model), (
        "loss", experiment.loss,
    )  # fmt: skip
    for key, part in parts:
        with placed(place):
            problems = [] if part is None else part.problems()
        if problems:
            raise problems_at([((key, *at), text) for at, text in problems], place)
    with placed(place):
        problems = metric_problems(experiment.evaluation.metrics)
    if problems:
        raise problems_at([(("evaluation", "metrics", *at), text) for at, text in problems], place)
    update["data"] = experiment.data.resolved()
    partition, optimizer = with_file_digest(experiment.clients.partition), experiment.clients.optimizer
    if optimizer is not None:
        optimizer = _resolve_plugin(OPTIMIZER, optimizer, place)
        if optimizer == PluginChoice(**USUAL_OPTIMIZER):
            optimizer = None
    changed = {"partition": partition, "optimizer": optimizer}
    update["clients"] = experiment.clients.model_copy(update=changed)
    experiment = experiment.model_copy(update=update)
    experiment = experiment.model_copy(update={"published": _published_of(experiment)})
    with placed(place):
        if of_problem:
            check_problem(experiment)
        else:
            check_model(experiment)
        check_batch(experiment, getattr(experiment.data, "train", None))
    return experiment


#: The names of models that come with fredsim.
MODELS = ("mlp", "linear", "lenet", "resnet", "vgg", "gpt")
#: Keys that a document may have besides those of an experiment.
DOCUMENT_KEYS = ("cases", "sweep", "select")
#: The full dotted keys of those that are often written without the key around them.
FULL_KEYS = {
    key: f"{around}.{key}"
    for around in ("evaluation", "dispatcher", "model", "data", "clients")
    for key in fields_of(Experiment, (around,))
    if key != "name"
}


def _with_hint(problem: Problem) -> Problem:
    """Return the problem, for an unknown key with a hint at the right one, at the top, or at the name that it is."""
    (*around, key), text = problem
    if around == ["model"] and key in MODELS:
        return (*around, key), f"unknown key; write {{name: {key}, …}}"
    if around or not text.startswith("unknown key"):
        return problem
    known = (*Experiment.model_fields, *DOCUMENT_KEYS)
    hint = f"; did you mean '{FULL_KEYS[key]}'?" if key in FULL_KEYS else nearest(str(key), known)
    return (key,), f"unknown key{hint} (known: {', '.join(known)})"


KIND_OF_KEY: dict[str, Kind] = {
    "server": "server",
    "dispatcher": "dispatcher",
    "compress": "compressor",
    "average": "average",
}
#: The dotted key of the optimizer of local steps, and the choice that is the same as none.
OPTIMIZER = "clients.optimizer"
USUAL_OPTIMIZER: dict[str, Any] = {"name": "sgd", "lr": None, "weight_decay": 0.0}


def _resolve_plugin(key: str, plugin: PluginChoice, place: PlaceOf) -> PluginChoice:
    """Return the choice of a class, under a dotted key, with every default of its hyper-parameters filled in."""
    around = tuple(key.split("."))
    try:
        hyper, problems = resolve_hyper(_kind_of(key), plugin.name, plugin.hyper)
    except ConfigError as error:
        raise ConfigError(f"{place((*around, 'name'))}: {key}.name: {error}") from None
    if problems:
        names = [name for name in KNOWN[_kind_of(key)] if isinstance(plugin.hyper.get(name), dict)]
        for number, (at, text) in enumerate(problems):
            if at in [(name,) for name in names] and text.startswith("unknown key"):
                problems[number] = at, f"unknown key; write {{name: {at[0]}, …}}"
        problems = _blame_override(key, plugin.name, problems, place)
        raise problems_at([((*around, *at), text) for at, text in problems], place)
    fixed = {name: getattr(plugin, name) for name in type(plugin).model_fields}
    return type(plugin)(**fixed, **hyper)


def _kind_of(key: str) -> Kind:
    return "optimizer" if key == OPTIMIZER else KIND_OF_KEY[key]


def _blame_override(key: str, name: str, problems: Problems, place: PlaceOf) -> Problems:
    """Return the problems; those caused by an override of only the name, which leaves other keys in place, say so."""
    around = tuple(key.split("."))
    named = place((*around, "name"))
    if not named.startswith(f"override '{key}.name="):
        return problems
    rest = "".join(f", {one}: …" for one in required_keys(_kind_of(key), name))
    whose, remedy = f"of {key} {name} ({named})", f"give {key}={{name: {name}{rest}}}"
    found = []
    for at, text in problems:
        left = not place((*around, *at)).startswith("override ")
        if left and text.startswith("unknown key"):
            text = f"{text.replace('unknown key', f'unknown key {whose}', 1)}; {remedy}"
        elif left and text.startswith(REQUIRED):
            text = f"{REQUIRED} {whose}; {remedy}"
        found.append((at, text))
    return found


def _resolve_gate(key: str, spec: str | dict[str, Any], place: PlaceOf) -> str | dict[str, Any]:
    """Return a gate's name, or {name: hyper-parameters} with every default filled in."""
    at = ("dispatcher", key)
    try:
        name, hyper = spelled_out(spec)
        found, problems = resolve_hyper("gate", name, hyper)
    except ValueError as error:
        raise problems_at([(at, str(error))], place) from None
    if problems:
        raise problems_at([((*at, name, *inner), text) for inner, text in problems], place)
    return {name: found} if found else name


@contextmanager
def placed(place: PlaceOf) -> Iterator[None]:
    """Put a place before the message of a ConfigError, as `with_place` does."""
    try:
        yield
    except ConfigError as error:
        raise with_place(error, place) from None


def with_place(error: ConfigError, place: PlaceOf) -> ConfigError:
    """Return the error with a place put before it: that of the key with which its message begins."""
    key = str(error).partition(" ")[0].rstrip(":")
    return ConfigError(f"{place(tuple(key.split('.')))}: {error}")


def _published_of(experiment: Experiment) -> Published | None:
    """Return the published points that belong to runs with this experiment's values, None if there are none."""
    published = experiment.published
    if published is None:
        return None
    flat = flatten(experiment.plain(whole=True))
    series = [one for one in published.series if all(value_at(flat, key) == value for key, value in one.where.items())]
    return published.model_copy(update={"series": series}) if series else None


DATA_WITH_TARGETS = ("least_squares", "quadratic", "mishchenko")


def check_model(experiment: Experiment) -> None:
    """Raise ConfigError if the model does not fit the data set, which has labels or targets, or the loss."""
    model, data = experiment.model.name, experiment.data.name
    if experiment.loss is not None and not experiment.data.has_rows:
        what = f"data {data} is a function of its own: leave loss out"
        raise ConfigError(f"loss is {experiment.loss.name}; {what}")
    takes_numbers = experiment.loss is not None and experiment.loss.made.targets in {"numbers", "any"}
    if data in DATA_WITH_TARGETS and model != "linear" and not (takes_numbers and experiment.data.has_rows):
        remedy = "give model: {name: linear}" + (", or loss: mse" if experiment.data.has_rows else "")
        raise ConfigError(f"model.name is {model}; data {data} has no classes: {remedy}")
    if data not in DATA_WITH_TARGETS and experiment.measured_by == "gap":
        known = f"data that has none ({', '.join(DATA_WITH_TARGETS)}), or loss: cross_entropy, mse or bce"
        raise ConfigError(f"model.name is linear; data {data} has classes: give mlp, {known}")
    _check_metrics(experiment)
    goal, measured_by = experiment.until.goal[0] if experiment.until else "", experiment.measured_by
    if goal in {"validation_error", "test_error", "gap"} and goal.rpartition("_")[2] != measured_by:
        has = {
            "gap": "no error, but a gap: give that, or validation_loss",
            "error": "no gap, but an error: give that, or validation_loss",
            "loss": "neither an error nor a gap: give validation_loss",
        }
        whose = f"loss {experiment.loss.name}" if experiment.loss and measured_by == "loss" else f"model {model}"
        raise ConfigError(f"until is of {goal}; runs of {whose} have {has[measured_by]}")
    of_validation = goal and goal != "gap" and not goal.startswith("test_")
    if of_validation and getattr(experiment.data, "validation", None) == 0:
        raise ConfigError(f"until is of {goal}, and data.validation is 0: give the data rows to validate")


def check_problem(experiment: Experiment) -> None:
    """Raise ConfigError if keys ask for what a problem of the user's own does not have: rows, and their outputs."""
    evaluation, problem = experiment.evaluation, experiment.problem
    assert problem is not None
    rows, outputs = "a problem has no rows", "a problem has no outputs; what evaluate returns is recorded"
    for key, given, why in (
        ("epochs", experiment.epochs, f"{rows} to pass over: give iterations"),
        ("evaluation.unit", evaluation.unit if evaluation.unit == "epochs" else None, f"{rows}: give iterations"),
        ("evaluation.test", evaluation.test, f"{rows} to test on: let evaluate return such numbers"),
        ("evaluation.metrics", ", ".join(one.name for one in evaluation.metrics), outputs),
        ("evaluation.gradient_norm", evaluation.gradient_norm, f"{rows}, and no gradient over all of them"),
        ("clients.sampling", None if experiment.clients.sampling == "iid" else experiment.clients.sampling,
         f"{rows} to take in turn: leave it out, and let gradient take samples by draw"),
        ("clients.partition", None if experiment.clients.partition == Iid() else experiment.clients.partition.name,
         f"{rows} to divide: let gradient go by draw.client"),
    ):  # fmt: skip
        if given:
            raise ConfigError(f"{key} is {str(given).lower() if given is True else given}; {why}")
    if experiment.until is not None:
        goal = experiment.until.goal[0]
        with suppress(SimulationError):  # of the user's class: its run says it
            known = problem.columns(experiment.seed)
            if goal not in known:
                what = f"is of what evaluate of {problem.name} does not return{nearest(goal, known)}"
                raise ConfigError(f"until.{goal}: {what} (known: {', '.join(known)})")


def _check_metrics(experiment: Experiment) -> None:
    """Raise ConfigError if metrics do not go with the model and the loss, or if `until` names none of them."""
    metrics, plain = experiment.evaluation.metrics, experiment.evaluation.model_dump()
    if metrics and experiment.measured_by == "gap":
        raise ConfigError("evaluation.metrics is given, and a linear model is measured by its gap: leave it out")
    for one in metrics:
        if one.of_classes and experiment.loss is not None and experiment.loss.made.targets != "classes":
            what = f"is of classes, and loss {experiment.loss.name} is not"
            raise ConfigError(f"evaluation.metrics: {one.name} {what}; leave it out, or give a function of yours")
    if experiment.until is not None:
        name = experiment.until.goal[0]
        if name in {"test_error", "test_loss"} and not experiment.evaluation.test:
            raise ConfigError(
                f"until.{name}: is of test rows; give evaluation.test: true, so that rows of it have that"
            )
        if name not in type(experiment.until).model_fields and not is_column(name, plain):
            known = [*type(experiment.until).model_fields, *columns_of(plain)]
            hint = f"{nearest(name, known)} (known: {', '.join(known)})"
            raise ConfigError(f"until.{name}: unknown key{hint}")


def check_batch(experiment: Experiment, rows: int | None) -> None:
    """Raise ConfigError if a minibatch is larger than the training set, or not 1 for a quadratic."""
    size = experiment.clients.batch_size
    if experiment.problem is not None and size != 1:
        what = "a problem draws its own samples, as many as its class likes: leave batch_size out"
        raise ConfigError(f"clients.batch_size is {size}; {what}")
    if not experiment.data.has_rows and size != 1:
        what = "a quadratic has no rows, and its gradients one draw of noise each"
        raise ConfigError(f"clients.batch_size is {size}; {what}: give 1, and for the mean of k draws data.noise ÷ √k")
    if rows is not None and size > rows:
        raise ConfigError(f"clients.batch_size is {size}; it must not exceed the {rows} training rows (data.train)")


def for_each_run(runs: Sequence[Run], do: Callable[[Run], Done], label: Callable[[Run], str]) -> list[Done]:
    """Return what `do` returns for each run.

    Raises the ConfigError of the first run that raises one, which names the run, unless each raises the same.
    """
    done: list[Done] = []
    for run in runs:
        try:
            done.append(do(run))
        except ConfigError as error:
            if not done and all(_message(do, other) == str(error) for other in runs[1:]):
                raise
            raise in_run(error, label(run)) from None
    return done


def _message(do: Callable[[Run], Done], run: Run) -> str | None:
    try:
        do(run)
    except ConfigError as error:
        return str(error)
    return None


def in_run(error: AnyError, label: str) -> AnyError:
    """Return the error with the run's label at the end of each of its lines; a single run has none."""
    if not label:
        return error
    short = label if len(label) <= LONGEST_LABEL else f"{label[:LONGEST_LABEL]}…"
    return type(error)(*(f"{line} (in the run {short})" for line in error.args))

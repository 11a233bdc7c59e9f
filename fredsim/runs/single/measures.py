"""The optional columns of metrics.csv that measure the parameters: gap, gradient norm, and `evaluation.metrics`."""

from __future__ import annotations

from fredsim.compute.engines import Engine
from fredsim.compute.metrics import Metrics
from fredsim.compute.objectives import EngineGradientNorm, Measure, blocks_of, gap, gradient_norm
from fredsim.compute.problem_engine import ProblemMetrics
from fredsim.config.choices import Backend
from fredsim.config.metrics import is_taken
from fredsim.errors import ConfigError
from fredsim.runs.single.prepared import Prepared
from fredsim.simulation.paths.backends import make_engine

__all__ = ["measures_of", "metrics_of"]


def measures_of(prepared: Prepared, backend: Backend, threads: int) -> dict[str, Measure]:
    """Return, by column name, the functions that measure the parameters at each row of metrics.csv."""
    found: dict[str, Measure] = {}
    model, dataset = prepared.model, prepared.dataset
    if model.measured_by == "gap":
        found["gap"] = gap(dataset)

    def engine_of_block(size: int) -> Engine:
        try:
            return make_engine(backend, model, dataset, size, threads)
        except ConfigError as error:  # of a module that cannot take so few rows
            what = f"evaluation.gradient_norm is true, and the last training rows that it takes together are {size}"
            raise ConfigError(f"{what}: {error}; have another number of rows (data.train), or leave it out") from None

    if prepared.experiment.evaluation.gradient_norm:
        if model.measured_by == "gap":
            found["gradient_norm"] = gradient_norm(dataset)
        else:
            _check_kernels(prepared, backend)
            found["gradient_norm"] = EngineGradientNorm(len(dataset.train), engine_of_block)
    return found


def _check_kernels(prepared: Prepared, backend: Backend) -> None:
    """Raise ConfigError if a device cannot compute the gradients of as many rows as the norm takes together."""
    graph, dataset = prepared.model.graph, prepared.dataset
    if backend != "cuda" or graph is None:
        return
    from fredsim.cuda.backend import can_compute

    for blocks in blocks_of(len(dataset.train)):
        if not can_compute(graph, dataset, size := blocks.shape[1]):
            what = f"evaluation.gradient_norm is true, and takes {size} training rows together"
            raise ConfigError(f"{what}, for which backend cuda has no kernels: give backend numba, or leave it out")


def metrics_of(prepared: Prepared, engine: Engine) -> Metrics | ProblemMetrics | None:
    """Return what measures the outputs at each row of metrics.csv; None if nothing does. Raises ConfigError."""
    evaluation = prepared.experiment.evaluation
    if engine.problem is not None:
        found = ProblemMetrics(engine.problem, engine)
        if taken := next(filter(is_taken, found.columns), None):
            what = f"evaluate returns {taken!r}, which is the name of another column; give it another"
            raise ConfigError(f"problem.name: {engine.problem.name}: {what}, or loss or error")
        return found
    if not evaluation.metrics:
        return None
    metrics = [one.metric() for one in evaluation.metrics]
    return Metrics(metrics, prepared.dataset, engine, test=evaluation.test)

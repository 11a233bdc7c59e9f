"""Refuses runs that need at least more memory than this machine has, before anything is allocated."""

from __future__ import annotations

import math

from fredsim.config.experiment import Experiment
from fredsim.errors import shown
from fredsim.networks.graph import Graph
from fredsim.simulation.schedule.length import Length
from fredsim.system.memory import refuse_beyond_memory

__all__ = ["check_sizes", "check_steps"]

COPIES = 4  # of the parameters: the initial ones, the server's, the engine's, and those that are saved
ROW = 32  # temporary bytes for the choice of one sample


def check_sizes(experiment: Experiment, graph: Graph, length: Length) -> None:
    """Raise ConfigError, naming the key to lower, if a run needs more memory than the machine has.

    The parameters, and the minibatches that are computed together, are counted.
    """
    clients, size, inputs = experiment.clients, graph.layout.size, math.prod(graph.sample)
    if key := experiment.model.sized_by:
        of = f"{size:,} parameters, of {inputs:,} inputs and {math.prod(graph.shapes[-1]):,} classes, take"
        what = f"model.{key} is {shown(getattr(experiment.model, key))}; {of}"
        refuse_beyond_memory(COPIES * 4 * size, what, "make the model smaller")
    minibatch = 4 * (clients.batch_size * (inputs + graph.values) + size)
    of = "the samples, activations and gradient of one minibatch take"
    refuse_beyond_memory(minibatch, f"clients.batch_size is {clients.batch_size}; {of}", "lower it")
    together = min(experiment.window or 1, clients.count, length.events or clients.count)
    refuse_beyond_memory(
        together * minibatch, f"window is {experiment.window}; {together:,} minibatches at once take", "lower it"
    )


def check_steps(message_start: str, steps: int, batch_size: int) -> None:
    """Raise ConfigError if the samples of one client's local steps take more memory than the machine has.

    `message_start` is the beginning of the message: the key and its value.
    """
    what = f"{message_start}; the samples of a client's local steps take"
    refuse_beyond_memory(ROW * steps * batch_size, what, "take fewer")

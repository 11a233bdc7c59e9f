"""The parameter servers, one file an algorithm. `SERVERS` maps the names used in YAML to the classes."""

if __name__ != "fredsim.servers":
    raise ImportError("import this package as fredsim.servers: under another name its classes would exist twice")

from fredsim.servers.adagrad import AdaGrad
from fredsim.servers.adam import Adam
from fredsim.servers.asgd import ASGD
from fredsim.servers.average_staleness import AverageStaleness
from fredsim.servers.averaged import AveragedSGD
from fredsim.servers.base import Reply, Server
from fredsim.servers.bfasgd import BFASGD
from fredsim.servers.dana import DANA
from fredsim.servers.dcasgd import DCASGD
from fredsim.servers.delay_adaptive import DelayAdaptive
from fredsim.servers.downpour import Downpour
from fredsim.servers.easgd import EASGD
from fredsim.servers.elementwise import ElementwiseServer
from fredsim.servers.exponential import ExponentialASGD
from fredsim.servers.fasgd import FASGD
from fredsim.servers.fedasync import FedAsync
from fredsim.servers.fedbuff import FedBuff
from fredsim.servers.gap_aware import GapAware
from fredsim.servers.momentum import Momentum
from fredsim.servers.parameter_store import ParameterStore
from fredsim.servers.rennala import Rennala
from fredsim.servers.ringmaster import Ringmaster
from fredsim.servers.rmsprop import RMSProp
from fredsim.servers.sasgd import SASGD
from fredsim.servers.sign_majority import SignMajority
from fredsim.servers.soft_sync import SoftSync
from fredsim.servers.sparse import SparseRows
from fredsim.servers.sync import Sync
from fredsim.servers.ternary_sync import TernarySync
from fredsim.servers.window_average import WindowAverage

SERVERS: dict[str, type[Server]] = {
    "sync": Sync,
    "soft_sync": SoftSync,
    "asgd": ASGD,
    "sasgd": SASGD,
    "exponential": ExponentialASGD,
    "average_staleness": AverageStaleness,
    "downpour": Downpour,
    "fasgd": FASGD,
    "bfasgd": BFASGD,
    "dcasgd": DCASGD,
    "ternary_sync": TernarySync,
    "averaged": AveragedSGD,
    "momentum": Momentum,
    "rmsprop": RMSProp,
    "adagrad": AdaGrad,
    "adam": Adam,
    "fedasync": FedAsync,
    "fedbuff": FedBuff,
    "delay_adaptive": DelayAdaptive,
    "gap_aware": GapAware,
    "dana": DANA,
    "easgd": EASGD,
    "rennala": Rennala,
    "ringmaster": Ringmaster,
    "sign_majority": SignMajority,
}

__all__ = [
    "ASGD",
    "BFASGD",
    "DANA",
    "DCASGD",
    "EASGD",
    "FASGD",
    "SASGD",
    "SERVERS",
    "AdaGrad",
    "Adam",
    "AverageStaleness",
    "AveragedSGD",
    "DelayAdaptive",
    "Downpour",
    "ElementwiseServer",
    "ExponentialASGD",
    "FedAsync",
    "FedBuff",
    "GapAware",
    "Momentum",
    "ParameterStore",
    "RMSProp",
    "Rennala",
    "Reply",
    "Ringmaster",
    "Server",
    "SignMajority",
    "SoftSync",
    "SparseRows",
    "Sync",
    "TernarySync",
    "WindowAverage",
]

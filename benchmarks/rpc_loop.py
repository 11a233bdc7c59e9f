"""What one would write with torch.distributed.rpc: a parameter server, and workers that push and fetch in one call.

    python -m benchmarks.rpc_loop SERVER CLIENTS BATCH_SIZE DATA UPDATES

prints, as JSON, the seconds that this many updates take, from the first push to the last. Each process has one thread.
A worker computes its gradient by autograd, sends all of it, and gets the parameters in the reply.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time

import numpy as np
import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as multiprocessing
import typer
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.cells import Cell
from benchmarks.torch_loop import PUSHES

__all__: list[str] = []


class Server:
    """The parameter server: a flat vector (P,), protected by a lock."""

    def __init__(self, cell: Cell, updates: int) -> None:
        start = cell.start()
        self._flat = torch.from_numpy(np.concatenate([part.reshape(-1) for part in start.values()]))
        self._push = PUSHES[cell.server]([self._flat], cell.hyper)
        self._left, self._timestamp = updates, 0
        self._lock = threading.Lock()
        self.began = self.ended = 0.0

    def push(self, gradient: Tensor, timestamp: int) -> tuple[Tensor, int] | None:
        """Apply a gradient (P,); return the parameters and their timestamp, or None if the run is over."""
        with self._lock:
            if not self._left:
                return None
            if not self._timestamp:
                self.began = time.perf_counter()
            self._push((gradient,), self._timestamp - timestamp)
            self._timestamp += 1
            self._left -= 1
            self.ended = time.perf_counter()
            return self._flat.clone(), self._timestamp


server: Server


def push(gradient: Tensor, timestamp: int) -> tuple[Tensor, int] | None:
    """Push to the server of this process."""
    return server.push(gradient, timestamp)


def work(cell: Cell, rank: int) -> None:
    """Compute and push until the run is over."""
    train, start = cell.dataset().train, cell.start()
    x, y = torch.from_numpy(train.x), torch.from_numpy(train.y)
    flat = torch.from_numpy(np.concatenate([part.reshape(-1) for part in start.values()]))
    timestamp, mu, step = 0, cell.batch_size, rank
    while True:
        views, at = [], 0
        for part in start.values():
            views.append(flat[at : at + part.size].view(part.shape).requires_grad_())
            at += part.size
        W1, b1, W2, b2 = views
        rows = slice(step % (len(y) // mu) * mu, step % (len(y) // mu) * mu + mu)
        hidden = torch.addmm(b1, x[rows], W1).relu()
        loss = cross_entropy(torch.addmm(b2, hidden, W2), y[rows])
        gradient = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, views)])
        answer = rpc.rpc_sync("server", push, args=(gradient, timestamp))
        if answer is None:
            return
        flat, timestamp = answer
        step += cell.clients


def process(rank: int, cell: Cell, updates: int) -> None:
    """Run the server (rank 0) or a worker in this process."""
    global server
    torch.set_num_threads(1)
    name = f"worker-{rank}" if rank else "server"
    if not rank:
        server = Server(cell, updates)
    rpc.init_rpc(name, rank=rank, world_size=1 + cell.clients)
    if rank:
        work(cell, rank)
    rpc.shutdown()
    if not rank:
        print(json.dumps({"seconds": server.ended - server.began}), flush=True)


def main(rule: str, clients: int, batch_size: int, data: str, updates: int) -> None:
    """Start the processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["TP_SOCKET_IFNAME"] = "lo"
    cell = Cell(rule, clients, batch_size, data)
    multiprocessing.start_processes(process, (cell, updates), nprocs=1 + clients, start_method="spawn")


if __name__ == "__main__":
    typer.run(main)

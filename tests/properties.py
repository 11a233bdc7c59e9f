"""Properties that the files of every run must have."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fredsim.runs.folder.results import Result

__all__ = ["Sizes", "applied", "check_files", "gate_of", "given_up", "sent_and_lost"]

FEATURES, CLASSES = 64, 10  # of `digits`


class Sizes:
    """The sizes of copies in bytes, computed from the experiment alone."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        widths = [FEATURES, *config["model"]["hidden"], CLASSES]
        self.tensors = [n for before, after in pairwise(widths) for n in (before * after, after)]
        self.whole = 4 * sum(self.tensors)
        server, clients = config["server"], config["clients"]["count"]
        ternary = sum(4 + math.ceil(n / 4) for n in self.tensors)
        self.push = self.fetch = self.whole
        if server["name"] == "ternary_sync":
            self.push = ternary
            if server["share_scaler"]:
                bits = math.ceil(math.log2(2 * clients + 1))
                self.fetch = sum(4 + math.ceil(n * bits / 8) for n in self.tensors)
        compress = config.get("compress") or {"name": ""}
        estimated, compress = compress["name"] == "ef21", compress.get("inner", compress)
        name, k, levels = compress["name"], compress.get("k", 0), compress.get("levels", 0)
        #: The most different values in a decoded tensor.
        self.values = {"ternary": 3, "qsgd": 2 * levels + 1, "sign": 3, "error_feedback_sign": 3}.get(name)
        #: The most values other than 0 in a decoded push.
        self.kept = (k if isinstance(k, int) else max(1, int(k * sum(self.tensors)))) if name == "top_k" else None
        if self.values:  # 2 bits for each of three values, and a float32 where they have a scale
            bits = 2 if self.values == 3 and name != "qsgd" else math.ceil(math.log2(self.values))
            self.push = sum(4 * (name != "sign") + math.ceil(n * bits / 8) for n in self.tensors)
        elif self.kept:
            self.push = 8 * self.kept  # a value and its place
        if estimated:  # what is decoded is a sum of what was sent
            self.values = self.kept = None
        #: The possible sizes of a copy of some of the tensors.
        sums = {0}
        for n in self.tensors:
            sums |= {4 * n + other for other in sums}
        self.some = sums - {0}

    def check_sent(self, push: NDArray[np.float32]) -> None:
        """Check that what was sent can be encoded in the bytes that are counted for it."""
        if not np.isfinite(push).all():
            return
        if self.kept is not None:
            assert np.count_nonzero(push) <= self.kept
        if self.values is not None:
            for tensor in np.split(push, np.cumsum(self.tensors)[:-1]):
                assert len(np.unique(tensor)) <= self.values


def gate_of(config: Mapping[str, Any], direction: str) -> str:
    """Return how a gate decides: "" if there is none, `whole` for a whole copy, `tensor` for each tensor."""
    given = config["dispatcher"][direction]
    if config["server"]["name"] in {"downpour", "bfasgd"}:  # which bring gates along
        given = {config["server"]["name"]: {"per": config["server"].get("per", "model")}}
    if given == "always":
        return ""
    ((name, hyper),) = given.items() if isinstance(given, dict) else [(given, {})]
    return "tensor" if name == "budget" or (isinstance(hyper, dict) and hyper.get("per") == "tensor") else "whole"


def policy_of(config: Mapping[str, Any]) -> str:
    """Return what happens to a push that is dropped."""
    return "accumulate" if config["server"]["name"] == "downpour" else str(config["dispatcher"]["dropped_push"])


def applied(config: Mapping[str, Any], events: pd.DataFrame) -> NDArray[np.bool_]:
    """Return whether something reached the server, for each event."""
    pushed: NDArray[np.bool_] = events["pushed"].to_numpy()
    return pushed | ((policy_of(config) == "reapply") & ~given_up(events))


def given_up(events: pd.DataFrame) -> NDArray[np.bool_]:
    """Return whether a task was given up, for each event."""
    found: NDArray[np.bool_] = events["given_up"].to_numpy() if "given_up" in events else np.zeros(len(events), bool)
    return found


def check_files(result: Result) -> None:
    """Check the files of a run with events and counts by client."""
    config, events, summary = result.config, result.events, result.summary
    assert events["iteration"].tolist() == [*range(summary["iterations"])]
    check_bytes(config, result)
    check_staleness(config, events, summary["updates"])
    check_rows(config, result)
    check_clients(config, result)


def check_bytes(config: Mapping[str, Any], result: Result) -> None:
    """Check that bytes are those of the copies, at each event and in total."""
    sizes, events = Sizes(config), result.events
    push, fetch = gate_of(config, "push"), gate_of(config, "fetch")
    assert (events["pushed"] == (events["bytes_pushed"] > 0)).all()
    assert push or (events["pushed"] ^ given_up(events)).all()
    assert not (events["pushed"] & given_up(events)).any()
    possible = {sizes.push} | (sizes.some if push == "tensor" else set())
    assert set(events["bytes_pushed"][events["pushed"]]) <= possible
    if fetch == "tensor":
        assert (events["bytes_fetched"] <= events["fetched"] * sizes.whole).all()
        assert (events["bytes_fetched"] >= events["fetched"] * min(sizes.some)).all()
    else:
        assert (events["bytes_fetched"] == events["fetched"] * sizes.fetch).all()
    assert result.summary["fetches"] == events["fetched"].sum()
    assert result.summary["bytes_fetched"] == events["bytes_fetched"].sum()
    more = result.summary["pushes"] - events["pushed"].sum()
    assert 0 <= more <= check_cancelled(result)
    least, most = (sizes.push, sizes.push) if push != "tensor" else (min(sizes.some), max(sizes.some))
    assert least * more <= result.summary["bytes_pushed"] - events["bytes_pushed"].sum() <= most * more


def check_cancelled(result: Result) -> int:
    """Check and return how many pushes were cancelled on their way: each of a task that was done and never arrived."""
    events, last = result.events, result.metrics.iloc[-1]
    found = int(last["potential_pushes"] - last["iteration"])
    if "done_client" not in events:
        assert not found
        return 0
    done, arrived = done_tasks(events), set(zip(events["client"], events["number"], strict=True))
    newest = dict(sorted(done | arrived))  # by client, the last number that is known
    assert sum(number < newest[client] for client, number in done - arrived) <= found <= len(done - arrived)
    return found


def check_staleness(config: Mapping[str, Any], events: pd.DataFrame, updates: int) -> None:
    """Check that staleness is T − j ≥ 0, where j is the timestamp of what was fetched after the event `begun`."""
    stamps, staleness = events["timestamp"].to_numpy(), events["staleness"].to_numpy()
    assert (staleness >= 0).all()
    assert (staleness <= stamps).all()
    after = np.append(np.append(stamps[1:], updates) if len(stamps) else stamps, 0)  # the last is that of event −1
    assert (np.diff(after[:-1]) >= 0).all()
    own = after[events["begun"].to_numpy()]
    if config["dispatcher"]["fred_timestamps"]:
        return
    if gate_of(config, "fetch") == "tensor" or gate_of(config, "push") == "tensor":
        if policy_of(config) == "skip":  # then the oldest tensor's timestamp counts
            assert (stamps - staleness <= own).all()
        return
    unsent: dict[int, list[int]] = {}
    sent = sent_and_lost(events)
    unknown: set[int] = set()  # clients of lost pushes: no row says whether the gate passed it, with what was unsent
    for client, number, stamp, mine, pushed, found, nothing in zip(
        events["client"], events["number"], stamps, own, events["pushed"], staleness, given_up(events), strict=True
    ):
        wanted = mine
        if (client, number) in sent and policy_of(config) in {"accumulate", "average"}:
            unknown.add(client)
        if client in unknown:
            unsent[client] = []
            if pushed:
                unknown.discard(client)
            continue
        if nothing:
            pass
        elif policy_of(config) in {"accumulate", "average"}:
            waiting = unsent.setdefault(client, [])
            waiting.append(mine)
            if pushed:
                wanted = min(waiting)
                waiting.clear()
        elif policy_of(config) == "reapply":
            wanted = unsent.setdefault(client, [mine])[0]
            if pushed:
                wanted = unsent[client][0] = mine
        assert found == stamp - wanted


def done_tasks(events: pd.DataFrame) -> set[tuple[int, int]]:
    """Return (client, number) of each task whose gradient was done before it arrived, if that is recorded."""
    if "done_client" not in events:
        return set()
    lists = zip(events["done_client"], events["done_number"], strict=True)
    return {pair for clients, numbers in lists for pair in zip(clients, numbers, strict=True)}


def sent_and_lost(events: pd.DataFrame) -> set[tuple[int, int]]:
    """Return (client, number) of each task before which a push was sent but lost, because the server restarted it."""
    done = done_tasks(events)
    found, last = set(), dict.fromkeys(events["client"], -1)
    for client, number in zip(events["client"], events["number"], strict=True):
        if any((client, lost) in done for lost in range(last[client] + 1, number)):
            found.add((client, number))
        last[client] = number
    return found


def check_rows(config: Mapping[str, Any], result: Result) -> None:
    """Check that rows of metrics.csv, the histogram and summary.json agree with the events."""
    events, metrics, summary = result.events, result.metrics, result.summary
    reached, staleness = applied(config, events), events["staleness"].to_numpy()
    assert dict(zip(*result.staleness.to_numpy().T.tolist(), strict=True) if len(result.staleness) else ()) == Counter(
        staleness[reached].tolist()
    )
    totals = {"fetches": "fetched", "bytes_fetched": "bytes_fetched"}
    more = {"pushes": "pushed", "bytes_pushed": "bytes_pushed"}  # those that were cancelled have no event
    cancelled = (metrics["potential_pushes"] - metrics["iteration"]).tolist()
    assert cancelled == sorted(cancelled)
    if not cancelled[-1]:
        totals, more = totals | more, {}
    before = 0
    for row in metrics.to_dict("records"):
        until = int(row["iteration"])
        assert row["potential_pushes"] >= until
        assert row["potential_fetches"] >= row["fetches"]
        assert row["timestamp"] == [*events["timestamp"], summary["updates"]][until]
        for name, column in totals.items():
            assert row[name] == events[column][:until].sum(), name
        for name, column in more.items():
            assert row[name] >= events[column][:until].sum(), name
        since = np.sort(staleness[before:until][reached[before:until]])
        ranks = {f"p{p}": since[math.ceil(p * len(since) / 100) - 1] for p in (50, 95)} if len(since) else {}
        wanted = ranks | {"mean": since.sum() / len(since), "max": since[-1]} if len(since) else {}
        for name in ("mean", "p50", "p95", "max"):
            found = row[f"staleness_{name}"]
            assert found == wanted[name] if wanted else np.isnan(found)
        before = until
    last = metrics.iloc[-1]
    assert (last["iteration"], last["timestamp"]) == (summary["iterations"], summary["updates"])


def check_clients(config: Mapping[str, Any], result: Result) -> None:
    """Check that clients.csv agrees with the events of each client."""
    events, clients = result.events, result.clients.set_index("client")
    reached = events[applied(config, events)]
    for column, of in (("pushes", "pushed"), ("bytes_pushed", "bytes_pushed")):
        counted = events.groupby("client")[of].sum().reindex(clients.index, fill_value=0)
        assert (clients[column] >= counted).all()
        assert clients[column].sum() == result.summary[column]
    assert clients["bytes_fetched"].sum() == events["bytes_fetched"].sum()
    means = reached.groupby("client")["staleness"].mean().reindex(clients.index)
    np.testing.assert_array_equal(clients["staleness_mean"].to_numpy(float), means.to_numpy(float))

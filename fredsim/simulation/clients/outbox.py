"""The clients' outbox: what happens to a push that the gate drops, or of which it lets only some tensors pass.

The key `dropped_push` chooses one of these:

- `reapply`: the server applies the client's last pushed gradient again, with its old timestamp; that costs no bytes.
  A client that has not pushed yet always pushes (Odena 2016).
- `skip`: nothing reaches the server.
- `accumulate`, `average`: the client keeps the sum, or the mean, of its unsent gradients until a push passes, which
  carries the oldest timestamp among them.

A push that the server cancels on its way is lost, with all the gradients in it. What `reapply` applies again is the
last push that was not cancelled.

If a gate decides tensor by tensor, the tensors that do not pass are zero in what reaches the server or, with `reapply`,
those that the client pushed last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from fredsim.config.choices import DroppedPush
from fredsim.numerics.arrays import Array
from fredsim.numerics.operations import Operations
from fredsim.plugins.state.state_arrays import as_state, of_state
from fredsim.plugins.state.states import State, Stateful, part_of

__all__ = ["Message", "Outbox", "PendingPush"]

Compress = Callable[[Array], tuple[Array, int]]


@dataclass(frozen=True, slots=True)
class Message:
    """What reaches the server: a push (P,), its timestamp, and the bytes it took; 0 for a push applied again.

    `needed`: whether the client may need this same array afterwards, so that the server must not write into it.
    """

    push: Array
    timestamp: int
    size: int
    needed: bool = False


@dataclass(frozen=True, slots=True)
class PendingPush:
    """A push that has left its client and has not arrived yet.

    `message` is what will reach the server, None if the gate dropped the push; `push` (P,) is what the client computed,
    `losses` (k·µ,) are those of its samples. If `given_up`, the task had no gradient: push and losses mean nothing.
    """

    message: Message | None
    push: Array
    losses: Array
    given_up: bool = False


class Outbox(Stateful):
    """The clients' unsent pushes, the pushes they sent last, and the pushes under way."""

    state_names = ("_unsent", "_sent", "_before", "on_way")

    def __init__(
        self, policy: DroppedPush, tensors: Sequence[slice], operations: Operations, *, may_cancel: bool = False
    ) -> None:
        """Start empty; `tensors` are the tensors' slices of the flat vector, `operations` allocates pushes.

        `may_cancel`: a push may be cancelled after it was offered.
        """
        self._operations = operations
        self._policy = policy
        self._tensors = tensors
        #: By client, what it has not sent: the sum (P,) and, by tensor, how many gradients, and the oldest timestamp.
        self._unsent: dict[int, tuple[Array, list[int], list[int]]] = {}
        self._sent: dict[int, tuple[Array, list[int]]] = {}  # by client: its last push, and each tensor's timestamp
        self._may_cancel = may_cancel
        #: If a push may be cancelled: by client, its entry of `_sent` before the push under way.
        self._before: dict[int, tuple[Array, list[int]] | None] = {}
        self.under_way: dict[int, PendingPush] = {}  # by client
        #: By client whose gradient is done but has not arrived, how many bytes it pushes; 0 if the push was dropped.
        self.on_way: dict[int, int] = {}

    def arrived(self, client: int) -> None:
        """Note that the client's push has arrived."""
        self.on_way.pop(client, None)
        self._before.pop(client, None)

    def cancel(self, client: int) -> int | None:
        """Cancel the client's push under way; return its bytes, 0 if it had been dropped, None if there is none."""
        self.under_way.pop(client, None)
        if client in self._before:
            before = self._before.pop(client)
            del self._sent[client]
            if before is not None:
                self._sent[client] = before
        return self.on_way.pop(client, None)

    def take_state(self) -> State:
        """Return the unsent pushes, those sent last, and those under way."""
        state = super().take_state()
        for client, one in self.under_way.items():
            state |= {
                f"under_way.{client}.push": as_state(one.push),
                f"under_way.{client}.losses": as_state(one.losses),
            }
            if one.message is not None:
                message = {"sent": one.message.push, "of": [one.message.timestamp, one.message.size]}
                state |= {f"under_way.{client}.{name}": as_state(value) for name, value in message.items()}
        return state

    def put_state(self, state: State) -> None:
        """Restore a state."""
        super().put_state(state)
        array = partial(of_state, operations=self._operations)
        self._unsent = {c: (array(total), counts, oldest) for c, (total, counts, oldest) in self._unsent.items()}
        self._sent = {client: (array(push), timestamps) for client, (push, timestamps) in self._sent.items()}
        self._before = {client: one and (array(one[0]), one[1]) for client, one in self._before.items()}
        self.under_way = {}
        for client in {int(name.partition(".")[0]) for name in part_of(state, "under_way")}:
            one = part_of(state, f"under_way.{client}")
            timestamp, size = one["of"].tolist() if "of" in one else (0, 0)
            message = Message(array(one["sent"]), timestamp, size) if "of" in one else None
            self.under_way[client] = PendingPush(message, array(one["push"]), one["losses"].copy())

    def offer(
        self, client: int, push: Array, timestamp: int, passes: bool | Sequence[bool], compress: Compress
    ) -> Message | None:
        """Return what reaches the server when a client has computed a new push; None if nothing does.

        `passes` is the gate's decision, for all of the push or by tensor; `compress` returns what the server decodes of
        a push, and the bytes.
        """
        mask = [passes] * len(self._tensors) if isinstance(passes, bool) else list(passes)
        if self._policy == "reapply":
            return self._reapply(client, push, timestamp, mask, compress)
        if self._policy in {"accumulate", "average"}:
            push, timestamps = self._accumulate(client, push, timestamp, mask)
        else:
            timestamps = [timestamp] * len(mask)
        if not any(mask):
            return None
        if not all(mask):
            push = push.copy()
            for part, passed in zip(self._tensors, mask, strict=True):
                if not passed:
                    push[part] = 0
        oldest = min(t for t, passed in zip(timestamps, mask, strict=True) if passed)
        return self._message(push, oldest, mask, compress)

    def _message(self, push: Array, timestamp: int, mask: Sequence[bool], compress: Compress) -> Message:
        decoded, size = compress(push)
        return Message(decoded, timestamp, size if all(mask) else self._bytes(mask))

    def _bytes(self, mask: Sequence[bool]) -> int:
        return 4 * sum(int(part.stop - part.start) for part, passed in zip(self._tensors, mask, strict=True) if passed)

    def _reapply(self, client: int, push: Array, timestamp: int, mask: Sequence[bool], compress: Compress) -> Message:
        if client not in self._sent:
            mask = [True] * len(mask)  # the client has not pushed yet: there is nothing to apply again
        if self._may_cancel and any(mask):
            before = self._before[client] = self._sent.get(client)
            if before is not None:
                self._sent[client] = before[0].copy(), list(before[1])
        if all(mask):
            message = self._message(push, timestamp, mask, compress)
            self._sent[client] = message.push.copy(), [timestamp] * len(mask)
            return message
        sent, timestamps = self._sent[client]
        for number, (part, passed) in enumerate(zip(self._tensors, mask, strict=True)):
            if passed:
                sent[part] = push[part]
                timestamps[number] = timestamp
        return Message(sent, min(timestamps), self._bytes(mask), needed=True)

    def _accumulate(self, client: int, push: Array, timestamp: int, mask: Sequence[bool]) -> tuple[Array, list[int]]:
        """Add the push to what is unsent; return what would be sent now, and each tensor's oldest timestamp."""
        if client not in self._unsent:
            if all(mask):  # nothing was unsent, and nothing stays unsent
                return push, [timestamp] * len(mask)
            total, counts, oldest = self._unsent[client] = push.copy(), [1] * len(mask), [timestamp] * len(mask)
        else:
            total, counts, oldest = self._unsent[client]
            for number, part in enumerate(self._tensors):
                if counts[number] == 0:
                    total[part] = push[part]
                    oldest[number] = timestamp
                else:
                    with np.errstate(all="ignore"):
                        total[part] += push[part]
                counts[number] += 1
        out, timestamps = total.copy(), list(oldest)
        for number, (part, passed) in enumerate(zip(self._tensors, mask, strict=True)):
            if passed:
                if self._policy == "average":
                    out[part] /= np.float32(counts[number])
                counts[number] = 0
        if not any(counts):
            del self._unsent[client]
        return out, timestamps

"""Threads that take turns: of several, and the one that leads them, only one does anything at any time.

So work that is written as one long call can be interrupted where it asks for something, and several such calls go on
side by side, without any of them being written for more than one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

__all__ = ["AbandonedError", "Turns"]


class AbandonedError(BaseException):
    """What asked will get no answer: the leader has given up. It passes through everything but `finally`."""


class Turns:
    """A call in a thread of its own, which runs only while `go_on` waits for it."""

    def __init__(self, call: Callable[[Callable[[Any], Any]], Any]) -> None:
        """`call(ask)` is the call; ask(question) ends its turn, and returns the answer when the next turn begins."""
        self.ended = False
        #: What the call returned, once it has ended.
        self.result: Any = None
        self._call, self._answers, self._questions = call, SimpleQueue[Any](), SimpleQueue[Any]()
        self._thread: threading.Thread | None = None  # None until it begins
        self._error: BaseException | None = None  # that the call has raised
        self._abandoned = False

    def go_on(self, answer: Any = None, error: Exception | None = None) -> Any:
        """Let the call go on with an answer; return its next question, or None if it has ended.

        An `error` is raised where the call has asked. Raises what the call has raised.
        """
        if self._thread is None:
            context = copy_context()  # what the call sets in it is its own
            self._thread = threading.Thread(target=context.run, args=(self._run,), daemon=True)
            self._thread.start()
        else:
            self._answers.put((answer, error))
        question = self._questions.get()
        if self.ended:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return question

    def give_up(self) -> None:
        """Let the call end without an answer: it raises AbandonedError where it has asked, or where it asks next.

        It may have the turn if an interrupt came while this thread waited for it.
        """
        self._abandoned = True
        if self._thread is not None:
            self._answers.put((None, None))
            self._thread.join()

    def _ask(self, question: Any) -> Any:
        """Ask, in the call's thread, and wait for the answer."""
        self._questions.put(question)
        answer, error = self._answers.get()
        if self._abandoned:
            raise AbandonedError
        if error is not None:
            raise error
        return answer

    def _run(self) -> None:
        """Do the call, in its thread."""
        try:
            self.result = self._call(self._ask)
        except AbandonedError:
            pass
        except BaseException as error:  # it is raised in the thread that waits
            self._error = error
        self.ended = True
        self._questions.put(None)

"""Calls C functions one after the other, without Python between them: for a device, launches of kernels."""

from __future__ import annotations

from fredsim.jit.cache import Compiled
from fredsim.jit.pointers import call, int64s, item, shift

__all__ = ["ARGUMENTS", "WORDS", "call_all"]

#: The arguments of each function, all 64 bits, and the words of a row of the table: the function's address, the
#: arguments, and one word that is the caller's.
ARGUMENTS = 11
WORDS = ARGUMENTS + 2


def _call_all(table, rows):
    """Call the functions of a table's rows in turn, leaving out rows whose function is 0.

    Return 0, or 1 + the first row whose function returned a 32-bit integer other than 0; the rows behind it are left.
    """
    row = int64s(table)
    for number in range(rows):
        if item(row, 0) != 0:
            error = call(
                item(row, 0),
                (
                    item(row, 1), item(row, 2), item(row, 3), item(row, 4), item(row, 5), item(row, 6), item(row, 7),
                    item(row, 8), item(row, 9), item(row, 10), item(row, 11),
                ),
            )  # fmt: skip
            if error & 0xFFFFFFFF:
                return number + 1
        row = shift(row, WORDS)
    return 0


#: call_all.call(address of an int64 table (rows, WORDS), rows)
call_all = Compiled(_call_all)

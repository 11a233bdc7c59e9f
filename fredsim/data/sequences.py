"""Sequences of tokens: addition modulo p, drawn from fredsim's own random streams; and the characters of a text file.

A sample is one row of tokens, and its target what should follow each of them; a target IGNORED does not count.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import DataError
from fredsim.numerics.streams import Stream, Streams, words64
from fredsim.system.files import irregular_kind
from fredsim.system.given import why_unread
from fredsim.system.memory import format_bytes, machine_memory

__all__ = ["IGNORED", "draw_sums", "read_text"]

Tokens = NDArray[np.int32]

IGNORED = -1
ORDER = 3  # what a draw is for; a draw has this in place of the client (fredsim.data.squares has the others)
BYTES_PER_CHARACTER = 24  # the memory that a character takes while it is read: as text, and as tokens and targets


def draw_sums(p: int, terms: int, seed: int) -> tuple[Tokens, Tokens]:
    """Return all sums of `terms` numbers below p in random order: tokens (pᵗ, terms + 1) and targets of this shape.

    A row is a₁ … aₜ and the token p, which stands for "=". The target of "=" is (a₁ + … + aₜ) mod p; those of the terms
    do not count. The order is the stable ascending sort of 64-bit keys, one for each sum, a₁ being its highest digit.
    """
    count = p**terms
    words = Streams(seed).run_of_words(Stream.DATA, 2 * count, client=ORDER)
    order = np.argsort(words64(words[0::2], words[1::2]), kind="stable")
    x = np.full((count, terms + 1), p, np.int32)
    for place in range(terms):
        x[:, place] = order // p ** (terms - 1 - place) % p
    y = np.full_like(x, IGNORED)
    y[:, -1] = x[:, :-1].sum(axis=1) % p
    return x, y


def read_text(path: str, block: int) -> tuple[Tokens, Tokens]:
    """Return the rows of a UTF-8 text, one after the other, (n, block), and their targets: the characters that follow.

    Tokens number the characters that occur in the order of their code points. Lines end with one character, as Python
    reads them: files that Windows has written give the same tokens. The last characters, if they fill no row, are left
    out. Raises DataError if the file cannot be read, is no text, or
    has no whole row.
    """
    remedy = "it must be a text file in UTF-8"
    if found := irregular_kind(path):
        raise DataError(f"{path}: cannot be read (it is {found}); {remedy}")
    try:
        size, most = Path(path).stat().st_size, machine_memory()
        if BYTES_PER_CHARACTER * size > most:
            takes = f"its characters take {format_bytes(BYTES_PER_CHARACTER * size)} of memory"
            raise DataError(f"{path}: {takes}, and this machine has {format_bytes(most)}; give a shorter text")
        text = Path(path).read_bytes().decode("utf-8").removeprefix("\ufeff")  # a byte order mark is no character
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({why_unread(path, error)}); {remedy}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is no UTF-8 at byte {error.start}; {remedy}") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    characters = np.frombuffer(text.encode("utf-32-le"), "<u4")
    count = (len(characters) - 1) // block
    if count < 1:
        needs = f"a row of data.block {block} needs {block + 1}, with the one that follows"
        raise DataError(
            f"{path}: has {len(characters):,} characters, and {needs}; give a longer text, or a lower block"
        )
    characters, occurs = characters[: count * block + 1], np.zeros(sys.maxunicode + 1, bool)
    occurs[characters] = True
    tokens = (np.cumsum(occurs, dtype=np.int32) - np.int32(1))[characters]
    x, y = (tokens[begin : begin + count * block].reshape(count, block) for begin in (0, 1))
    return x, y

"""The files of what becomes of PyTorch's operators, in the order of the reference page. They import no PyTorch."""

from __future__ import annotations

from fredsim.networks.capture import (
    attention,
    elements,
    images,
    matmul,
    norms,
    places,
    products,
    recurrent,
    resized,
    sums_of_products,
    views,
)

__all__ = ["PARTS"]

PARTS = products, matmul, sums_of_products, images, resized, norms, attention, recurrent, elements, places, views

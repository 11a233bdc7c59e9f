"""Keys of a document that concern all its runs together, such as `select`."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from fredsim.config.document import Document, problems_at
from fredsim.hyper import HyperParameters, explain

__all__ = ["validated"]

Model = TypeVar("Model", bound=HyperParameters)


def validated(document: Document, key: str, model: type[Model]) -> Model | None:
    """Return the validated value of a key for all runs together, None if it is not given. Raises ConfigError."""
    value = document.data.get(key)
    if value is None:
        return None
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise problems_at([((key, *at), text) for at, text in explain(error, model)], document.place) from None

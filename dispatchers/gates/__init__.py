"""The gates, which decide whether a copy, that is, a push or a fetch, passes or is dropped; one file per gate.

Clients have the initial parameters without a fetch, so no gate is asked for these. `GATES` maps the gates' names in
YAML, those of the files, to classes. A file is listed if its class has an `idea`. The classes are attributes of this
package, too.
"""

from collections.abc import Mapping
from typing import Any

from fredsim.dispatchers.gates.base import Gate, Statistics
from fredsim.errors import nearest, shown
from fredsim.plugins.discovery import Classes, class_named

__all__ = ["GATES", "Gate", "Statistics", "spelled_out"]

GATES: Mapping[str, type[Gate]] = Classes(__name__, Gate)


def __getattr__(name: str) -> Any:
    return class_named(name, __name__, GATES)


def spelled_out(spec: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and the hyper-parameters of a gate as given in YAML: a name, or {name: value or mapping}.

    Raises ValueError for any other form.
    """
    if isinstance(spec, str):
        return spec, {}
    if isinstance(spec, dict) and isinstance(name := spec.get("name"), str):
        rest = ", ".join(f"{key}: {shown(value)}" for key, value in spec.items() if key != "name")
        raise ValueError(f"is {spec!r}; a gate's name is its key: write {{{name!r}: {{{rest}}}}}")
    if not isinstance(spec, dict) or len(spec) != 1:
        raise ValueError(f"is {spec!r}; it must be always, or one name with its hyper-parameters, such as {{every: 4}}")
    ((name, hyper),) = spec.items()
    if isinstance(hyper, dict):
        return name, hyper
    short = GATES[name].short if name in GATES else ""
    if not short:
        hint = nearest(name, GATES)
        if name in GATES:
            needed = [key for key, field in GATES[name].Hyper.model_fields.items() if field.is_required()]
            hint = f"; write {{{name}: {{{needed[0]}: {shown(hyper)}}}}}" if needed else ""
        raise ValueError(f"is {spec!r}; the hyper-parameters of {name} must be a mapping{hint}")
    return name, {short: hyper}

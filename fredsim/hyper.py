"""Hyper-parameters: one frozen pydantic model per class, with bounds; errors name the nearest known key."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from fredsim.errors import ConfigError, SimulationError, closest, flow, nearest, nearest_class, shown
from fredsim.numerics.arrays import LARGEST
from fredsim.numerics.given_arrays import CheckedOperations
from fredsim.plugins.discovery import is_built_in
from fredsim.plugins.state.states import Stateful

Made = TypeVar("Made")

__all__ = [
    "REQUIRED",
    "Configurable",
    "Epsilon",
    "FileName",
    "Finite",
    "Fraction",
    "HyperParameters",
    "NonNegative",
    "Positive",
    "PositiveInt",
    "Printable",
    "check_printable",
    "explain",
    "fields_of",
    "made_by_name",
    "named",
    "spelled_out",
    "without_space",
    "wrong_name",
]

Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Epsilon = Annotated[float, Field(ge=2.0**-126, le=LARGEST, allow_inf_nan=False)]  # above 0 in float32 too
Fraction = Annotated[float, Field(ge=0, lt=1)]  # a decay rate: 1 would never forget
PositiveInt = Annotated[int, Field(gt=0, lt=2**32)]  # counts are 32-bit words in the counters of random draws


def check_printable(text: str) -> str:
    """Return a text of 1 to 1000 printable characters. Raises ValueError for any other text."""
    if not 0 < len(text) <= 1000 or not text.isprintable():
        raise ValueError(f"is {shown(text)}; it must be of 1 to 1000 printable characters")
    return text


def _check_file_name(name: str) -> str:
    """Return the name if it begins with a letter, a digit or _, so that it is no hidden file, option or `..`.

    Raises ValueError for any other name.
    """
    if not re.fullmatch(r"\w[\w.+-]*", name) or len(name.encode()) > 200:
        what = "it names files: begin with a letter, a digit or _, then use these and . + - only, 200 bytes at most"
        raise ValueError(f"is {shown(name)}; {what}")
    return name


Printable = Annotated[str, AfterValidator(check_printable)]
FileName = Annotated[str, AfterValidator(_check_file_name)]


class HyperParameters(BaseModel):
    """Base of every set of hyper-parameters: frozen, strictly typed, no unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    def resolve_defaults(self, clients: int) -> dict[str, Any]:
        """Return what null stands for, a value or a text, by hyper-parameter, given the number of clients."""
        return {}

    def meant(self, clients: int) -> dict[str, Any]:
        """Return what `resolve_defaults` returns: its earlier name, which a user's class may still define."""
        return self.resolve_defaults(clients)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "meant" in vars(cls) and "resolve_defaults" not in vars(cls):
            cls.resolve_defaults = cls.meant  # type: ignore[method-assign]


class Configurable(Stateful):
    """Base of classes whose keyword arguments are the fields of their nested `Hyper`, kept in `self.hyper`."""

    Hyper: ClassVar[type[HyperParameters]] = HyperParameters

    #: Whether the class itself, not only a base of it, comes with fredsim.
    _built_in: ClassVar[bool] = True
    #: By method of fredsim's classes: returns the method with its array converted, if a user's class passes it on.
    _converters: ClassVar[Mapping[str, Callable[..., Any]]] = {}

    #: The operations of the backend (fredsim.numerics.operations).
    operations: Any = None
    _given_streams: Any = None
    #: A function that returns the pool in which arrays (P,) of single clients are (fredsim.compute.storage.Pool);
    #: None: they are stored in memory.
    _given_pool: Any = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Note whether the class is fredsim's; if so, let its methods convert what a user's class passes on."""
        super().__init_subclass__(**options)
        cls._built_in = is_built_in(cls)
        for name in cls._converters.keys() & vars(cls).keys() if cls._built_in else ():
            setattr(cls, name, cls._converters[name](vars(cls)[name]))

    def __init__(self, /, **hyper: Any) -> None:
        try:
            self.hyper: Any = self.Hyper.model_validate(hyper)
        except ValidationError as error:
            problems = explain(error, self.Hyper)
            raise ConfigError(
                "; ".join(f"{type(self).__name__}: {'.'.join(map(str, at))}: {text}" for at, text in problems),
                problems=problems,
            ) from None

    @property
    def streams(self) -> Any:
        """The random streams (fredsim.numerics.streams). Raises SimulationError if there are none yet."""
        if self._given_streams is None:
            raise SimulationError(f"{type(self).__name__}: draws, but was given no streams; set `streams` first")
        return self._given_streams

    @streams.setter
    def streams(self, streams: Any) -> None:
        self._given_streams = streams

    def bind_runtime(self, streams: Any, operations: Any, pool: Any = None) -> None:
        """Set the random streams, the backend's operations, and the function that returns the pool, before `init`.

        A user's class gets operations that take any array, since it may pass arrays that kernels cannot read.
        """
        checked = self._built_in or isinstance(operations, CheckedOperations)
        self.operations = operations if checked else CheckedOperations(operations)
        self._given_streams, self._given_pool = streams, pool


Location = tuple[int | str, ...]
LONGEST_CORRECTION = 160  # the most characters of a value that a message says how to write


def spelled_out(value: Any, known: Collection[str], own: str = "") -> Any:
    """Return a choice that is given by its name alone as a mapping.

    Raises ValueError if it has none of the known names; where `own` says what a name with a colon is, that will do.
    """
    spelled = {"name": value} if isinstance(value, str) else value
    if not isinstance(spelled, dict):
        raise ValueError(f"is {shown(value)}; it must be a name, or {{name: …}} with its keys")
    name, names = spelled.get("name"), ", ".join(known) + (f", or {own}" if own else "")
    if not isinstance(name, str) or not (name in known or (own and ":" in name)):
        missing = f"is {shown(value)}, without a name{named(spelled, known)}"
        found = f"names {shown(name)}" if "name" in spelled else missing
        near = nearest_class(str(name), known) if own else nearest(str(name), known)
        raise ValueError(f"{found}{near} (known: {names})")
    return spelled


def made_by_name(given: Mapping[str, Any], known: Mapping[str, Callable[..., Made]]) -> Made:
    """Return the object of {name: …, hyper-parameters}, of one of the known classes. Raises ConfigError."""
    hyper = dict(given)
    name = hyper.pop("name", None)
    if isinstance(name, str) and name in known:
        return known[name](**hyper)
    found = f"is {shown(name)}{nearest(str(name), known)}" if "name" in given else f"{REQUIRED}{named(given, known)}"
    raise wrong_name(f"{found} (known: {', '.join(known)})")


def wrong_name(text: str) -> ConfigError:
    """Return the error about the key `name` of a class within another."""
    return ConfigError(f"name: {text}", problems=[(("name",), text)])


REQUIRED = "is required"  # how the message for a missing key begins
MANY_PROBLEMS = 100  # after so many problems the nearest known key is no longer looked up, which is slow


def explain(error: ValidationError, model: type[BaseModel]) -> list[tuple[Location, str]]:
    """Return (location, message) for each problem that pydantic found; the message says what would be right."""
    problems: list[tuple[Location, str, str]] = []  # the last is the remedy
    wanted: dict[Location, list[str]] = {}  # by location, of which types a value may be
    misspelt: set[Location] = set()  # the keys that unknown ones probably stand for
    for item in error.errors():
        location, unknown = item["loc"], item["type"] == "extra_forbidden"  # then the last part is a key
        at: Location = tuple(part for part in location[:-1] if not _is_union_branch(part))
        at += tuple(part for part in location[-1:] if unknown or not _is_union_branch(part))
        refused = item.get("ctx", {}).get("error")
        if isinstance(refused, ConfigError) and refused.problems:  # of a class within this one
            problems += [((*at, *inner), text, "") for inner, text in refused.problems]
            continue
        if unknown:
            known = fields_of(model, location[:-1])
            word, few = str(at[-1]).partition(":")[0], len(problems) < MANY_PROBLEMS
            near, told = (closest(word, known), nearest(word, known)) if few else (None, "")
            rest = without_space({at[-1]: item["input"]}) or f"{told} (known: {', '.join(known) or 'none'})"
            text, remedy = "unknown key", rest
            misspelt.add((*at[:-1], near or ""))
        else:
            text, remedy = _explained(item, at, model)
            _, be, kind = text.partition("; it should be " if "; it should be " in text else "; it must be ")
            of_type = be and (item["type"].endswith("_type") or (item["type"], remedy) == ("literal_error", ""))
            wanted.setdefault(at, []).append(kind if of_type else "")
        problems.append((at, text, remedy))
    return _first_of_each(problems, wanted, misspelt)


def _first_of_each(
    problems: Sequence[tuple[Location, str, str]], wanted: Mapping[Location, Sequence[str]], misspelt: set[Location]
) -> list[tuple[Location, str]]:
    """Return the problems of which a union reports one for every branch, as one message for each location.

    It is the first one there, and none where one inside it has its own, or another one tells of the same mistake; if
    the value is of no type that is `wanted`, the message names all of these.
    """
    first = {at: (text, remedy) for at, text, remedy in reversed(problems)}
    inner = {at[:length] for at in first for length in range(1, len(at))}
    named_wrong = {
        at[:-1]
        for at, (text, remedy) in first.items()
        if at[-1:] == ("name",) and text != "unknown key" and (text != REQUIRED or remedy.startswith("; write {name: "))
    }
    found = []
    for at, (text, remedy) in reversed(first.items()):
        kinds = wanted.get(at, ())
        others = [f", or {kind}" for kind in dict.fromkeys(kinds[1:])] if all(kinds) else []
        told = (text == REQUIRED and at in misspelt) or (text == "unknown key" and at[:-1] in named_wrong)
        if at not in inner and not told:
            found.append((at, f"{text}{''.join(others)}{remedy}"))
    return found


def _explained(item: Any, at: Location, model: type[BaseModel]) -> tuple[str, str]:
    """Return the message for a problem of pydantic's that is no unknown key, and the remedy, which may be empty."""
    value, field = item.get("input"), _field_at(model, item["loc"])
    match item["type"]:
        case "missing":
            written = without_space(value) or (named(value) if at[-1] == "name" else "")
            return REQUIRED, written or _example(at, field)
        case "literal_error":
            expected = item["ctx"]["expected"]
            near = nearest(value, re.findall(r"'([^']+)'", expected)) if isinstance(value, str) else ""
            return f"is {shown(value)}; it must be {expected}", near
        case "schedule" | "unknown":  # of a name that chooses one of several classes
            name = value.get("name", "") if isinstance(value, dict) else value
            known = re.split(", (?:or )?", re.split(" schedules | of ", item["msg"])[-1])
            written = named(value, known)
            if isinstance(value, str) and not written and item["type"] == "unknown" and "none" not in item["msg"]:
                written = _correction("float_type", value, None)  # a number of seconds does, too
            return f"is {shown(value)}; it {item['msg']}", written or nearest(str(name), known)
        case "byte_size" | "byte_size_unit":
            return f"is {shown(value)}; it must be a number of bytes", ", such as 500000000 or 500MB"
        case "model_type" | "dict_type" | "model_attributes_type":
            written = _correction(item["type"], value, field) or _example(at, field)
            return f"is {shown(value)}; it must be a mapping of keys to values", written
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            ((_, bound),) = item["ctx"].items()
            text = f"is {shown(value)}; it should be {item['type'].replace('_', ' ')} {bound:.17g}"
            return text.replace("than equal", "than or equal to"), ""
        case "string_pattern_mismatch" if wanted := PATTERNS.get(item["ctx"]["pattern"]):
            return f"is {shown(value)}; it must be {wanted}", _example(at, field)
        case _ if value is None and (written := without_space({at[-1]: None} if at else None)):
            return "unknown key", written  # where any name may stand, as that of a metric
        case _:
            # "Input should be …", "String should match …", "List should have … after validation, not 0"
            message = re.sub(r"^(Input|String|List) |^Value error, | after validation, not \d+$", "", item["msg"])
            text = message if item["type"] == "value_error" else f"is {shown(value)}; it {message}"
            remedy = _correction(item["type"], value, field)
            return text, remedy or (_example(at, field) if item["type"].endswith("_type") else "")


#: How others write true and false: YAML 1.1, Python, C.
SAID = dict.fromkeys(("yes", "on", "1"), "true") | dict.fromkeys(("no", "off", "0"), "false")
#: What a text must be that has to match a pattern.
PATTERNS = {
    "^[0-9a-f]{64}$": "a SHA-256, of 64 digits and letters from a to f, or null",
    "^[A-Za-z_][A-Za-z_0-9]*$": "of letters, digits and _, and begin with no digit",
    ":": "yours, as package.module:name",
}
#: The types of YAML that pydantic wants, by how its names of problems begin.
WANTED: dict[str, type] = {"list": list, "int": int, "float": float, "bool": bool, "model": dict, "dict": dict}


def _correction(problem: str, value: Any, field: FieldInfo | None) -> str:
    """Return what to write instead of a value of the wrong type, if its meaning is obvious; otherwise an empty text."""
    wanted = next((kind for start, kind in WANTED.items() if problem.startswith(start)), None)
    if isinstance(value, str) and value.lower() in {"none", "nil"} and field is not None and _takes(field, None):
        return ": write null"
    if wanted is bool and (word := str(value).lower()) in SAID:
        return f": write {SAID[word]}"
    if wanted is None or isinstance(value, bool) or not isinstance(value, int | float | str):
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if wanted is float and isinstance(value, str) and re.fullmatch(r"-?\d+,\d+", value):
        value = value.replace(",", ".")
    if wanted is float and isinstance(value, str) and re.fullmatch(r"\d{1,3}%", value):
        value = int(value[:-1]) / 100
    if wanted is int and isinstance(value, str) and re.fullmatch(r"\d{1,3}(,\d{3})+", value):
        value = value.replace(",", "")
    text = str(value).strip()
    if wanted in {int, float} and re.fullmatch(r"[\d.]+ ?(ns|[mµu]?s|min|h|[kMGT]i?B(/s|ps)?|[kMG]?b(it|ps))", text):
        return "; leave out the unit"
    for form in (f"[{text}]", text) if wanted is list else (text,):
        found = _read(form)
        right = type(found) is wanted or (wanted is float and type(found) is int)
        if right and (wanted is not list or (form[0] == "[" and _takes(field, found))):
            return f": write {form}"
    return ""


def without_space(value: Any) -> str:
    """Return what to write instead of {name:asgd}, which YAML reads as a mapping of that whole text to null."""
    for key in value if isinstance(value, dict) else ():
        if value[key] is None and re.fullmatch(r"""\w[\w.]*:([^:]+|['"].*)""", str(key)):
            return f"; write {str(key).replace(':', ': ', 1)}, with a space after the colon"
    return ""


def named(value: Any, known: Collection[str] | None = None) -> str:
    """Return what to write instead of {lognormal: {sigma: 1}}, or of lognormal alone, where {name: …} is wanted.

    If the `known` names are not given, a mapping of one key to others is taken for that.
    """
    if written := without_space(value):
        return written
    name, more = next(iter(value.items())) if isinstance(value, dict) and len(value) == 1 else (value, None)
    keys = more if isinstance(more, dict) else {}
    if (
        not isinstance(name, str)
        or "name" in keys
        or (name not in known if known is not None else not isinstance(more, dict))
    ):
        return ""
    return f"; write {flow({'name': name, **keys})[:-1]}{'' if keys else ', …'}}}"


def _example(at: Location, field: FieldInfo | None) -> str:
    """Return `, such as KEY: EXAMPLE` for a key whose field has an example, as YAML writes it; otherwise nothing."""
    if field is None or not field.examples:
        return ""
    return f", such as {at[-1]}: {flow(field.examples[0])}"


def _read(text: str) -> Any:
    """Return what YAML reads a text as; None if it is long, or no YAML."""
    if len(text) > LONGEST_CORRECTION or not text.isprintable():
        return None
    from ruamel.yaml import YAML

    try:
        return YAML(typ="safe", pure=True).load(text)
    except Exception:  # for some texts ruamel raises all kinds of exceptions
        return None


def _takes(field: FieldInfo | None, value: Any) -> bool:
    """Return whether a field takes a list; if the field is not known, it is assumed."""
    if field is None:
        return True
    try:
        kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        TypeAdapter(kind, config=ConfigDict(strict=True)).validate_python(value)
    except (PydanticUserError, ValidationError):
        return False
    return True


def _is_union_branch(part: int | str) -> bool:
    """Return whether a part of a location is a union's branch, which pydantic names by its type.

    Such names are 'int', 'Normal', 'literal[…]' and 'function-…'.
    """
    return isinstance(part, str) and (
        part in {"int", "float", "str", "bool"}
        or part[:1].isupper()
        or "[" in part
        or part.startswith(("function-", "constrained-"))
    )


def fields_of(model: type[BaseModel], at: Location) -> list[str]:
    """Return the known keys of the model at a location; for a union, those of the branch that the location names."""
    found = _model_at(model, at)
    return [] if found is None else [field.alias or name for name, field in found.model_fields.items()]


def _model_at(model: type[BaseModel], at: Location) -> type[BaseModel] | None:
    """Return the model at a location within a model, None if there is none."""
    candidates: list[Any] = []
    for part in at:
        if isinstance(part, int):  # an element of a list of models
            continue
        if _is_union_branch(part):
            model = next((c for c in candidates if getattr(c, "__name__", "") == part), model)
            continue
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        candidates = [annotation]
        for one in candidates:  # what it finds, too: of a list, of null or more, of a union within what is Annotated
            candidates += getattr(one, "__args__", ())
        candidates = [getattr(c, "__origin__", c) for c in candidates]  # what is Annotated
        found = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if not found:
            return None
        model = found[0]
    return model


def _field_at(model: type[BaseModel], at: Location) -> FieldInfo | None:
    """Return the field at a location within a model, None if it is none of a model's."""
    while at and isinstance(at[-1], str) and _is_union_branch(at[-1]):
        at = at[:-1]
    around = _model_at(model, at[:-1]) if at and isinstance(at[-1], str) else None
    return None if around is None else around.model_fields.get(str(at[-1]))

"""Names and options: how they are written, what they resolve to, and the one exception a user sees.

`rope:fraction=0.25` on a command line and `{name: rope, fraction: 0.25}` in YAML are the same `Spec`. Nothing unknown
is accepted, and nothing accepted is ignored. This module imports no torch.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import re
import traceback
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

if typing.TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

M = typing.TypeVar("M", bound="BaseModel")
Value = bool | int | float | str | None | tuple["Value", ...]


class SpecError(ValueError):
    """A user's mistake: the message says what was wrong, where, and what to type instead."""

    exit_code = 2
    """The exit code of the command line."""


# --- the grammar -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spec:
    """A name with options, e.g. `rope:fraction=0.25:interleaved=true`.

    The name is a key of a table (`rope`), `package.module:Class` or `file.py:Class`; options are kept sorted.
    """

    name: str
    options: tuple[tuple[str, Value], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", tuple(sorted(self.options)))

    @classmethod
    def of(cls, value: str | Mapping[str, object] | Spec) -> Spec:
        """Parse a string or a mapping into a spec; a spec is returned as it is."""
        if isinstance(value, Spec):
            return value
        if isinstance(value, Mapping):
            return cls._of_mapping(value)
        if isinstance(value, str):
            return cls._of_text(value)
        raise SpecError(f"expected a name such as 'rope:fraction=0.25' or a mapping with 'name', not {value!r}")

    @classmethod
    def _of_mapping(cls, value: Mapping[str, object]) -> Spec:
        if not isinstance(value.get("name"), str):
            raise SpecError(f"a mapping needs a 'name', e.g. {{name: rope, fraction: 0.25}}, not {dict(value)!r}")
        named = cls._of_text(str(value["name"]))
        if named.options:
            raise SpecError(f"in a mapping, options stand beside 'name', not inside it: {value['name']!r}")
        rest = {key: item for key, item in value.items() if key != "name"}
        for key in rest:
            _check_option_name(key, str(value["name"]))
        return cls(named.name, tuple((key, _plain(item, key)) for key, item in rest.items()))

    @classmethod
    @functools.lru_cache(4096)  # a report reads the same few thousand names many times
    def _of_text(cls, text: str) -> Spec:
        name, *parts = _split(text.strip(), ":")
        if parts and "=" not in parts[0]:
            name = f"{name}:{parts.pop(0)}"
        if ".py:" in name and name.endswith(":"):
            raise SpecError(f"{text!r} names no class; write {name}Mine, where Mine is the class in that file")
        if name.endswith(":") and name.strip(":"):
            raise SpecError(f"{text!r} ends in a colon; write {name[:-1]} alone, or {name}option=value")
        if not name or name.startswith(":"):
            raise SpecError(f"{text!r} has no name; write name:option=value, e.g. rope:fraction=0.25")
        if "=" in name:
            raise SpecError(f"{text!r} begins with an option; write the name first, e.g. rope:fraction=0.25")
        options: dict[str, Value] = {}
        for part in parts:
            key, equals, item = part.partition("=")
            if not equals:
                raise SpecError(f"option {part!r} of {name!r} has no value; write {part or 'option'}=value")
            _check_option_name(key, name)
            if key in options:
                raise SpecError(f"option {key!r} of {name!r} is given twice")
            options[key] = _parse(item)
        return cls(name, tuple(options.items()))

    def __str__(self) -> str:
        return ":".join([self.name, *(f"{key}={format_value(item)}" for key, item in self.options)])

    def mapping(self) -> dict[str, Value]:
        """Return the YAML form: `{name: ..., option: value}`."""
        return {"name": self.name, **dict(self.options)}


def parse_specs(text: str) -> list[Spec]:
    """Parse a comma-separated list of specs, `nope,rope:fraction=0.25`; `2*[3*rope,nope]` gives eight."""
    found = [spec for part in _split(text, ",") if part.strip() for spec in _repeated(part.strip())]
    if len(found) > 1000:
        raise SpecError(f"a list of {len(found):,} names is beyond anything that is meant: {text[:40]}...")
    return found


def _repeated(part: str) -> list[Spec]:
    times, star, rest = (piece.strip() for piece in part.partition("*"))
    if part.startswith("["):
        raise SpecError(f"{part!r}: say how often a list is repeated, e.g. 2*{part}, or leave out the brackets")
    if not star or not times.isdecimal():
        return [Spec.of(part)]
    if not re.fullmatch("[1-9][0-9]{0,2}", times):
        raise SpecError(f"{part!r}: a name is repeated 1 to 999 times, not {times[:20]}")
    return (parse_specs(rest[1:-1]) if rest.startswith("[") and rest.endswith("]") else [Spec.of(rest)]) * int(times)


def _check_option_name(key: object, name: str) -> None:
    if not (isinstance(key, str) and re.fullmatch(r"[a-z][a-z0-9_]*", key)):
        raise SpecError(f"{key!r} cannot be an option of {name!r}: option names are lower-case words")
    if key == "name":
        raise SpecError(f"no option can be called 'name': that is what {name!r} is in a mapping")


def _split(text: str, separator: str) -> list[str]:
    """Split outside square brackets, so that a list may be a value."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _parse(text: str) -> Value:
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        return tuple(_parse(part) for part in _split(text[1:-1], ",") if part.strip())
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if text == "null":
        return None
    if re.fullmatch(r"[+-]?[0-9]+", text):
        if len(text) > 1000:
            raise SpecError(f"a number of {len(text):,} digits is beyond anything that is meant: {text[:20]}...")
        return int(text)
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", text, re.IGNORECASE):
        return float(text)
    return text


def format_value(value: object) -> str:
    """Format a value as it is written in a spec."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return "[" + ",".join(format_value(item) for item in value) + "]"
    return str(value)


def _plain(value: object, key: str) -> Value:
    if isinstance(value, list | tuple):
        return tuple(_plain(item, key) for item in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise SpecError(f"option {key!r} must be a number, a word, true, false or a list, not {value!r}")


# --- resolving -------------------------------------------------------------------------------------------------------


_SEVERAL = {
    "encoding": " Several go into a list, one per layer.",
    "task": " A run has one task; a study takes several: vary: {task: [copy, sort]} in its file.",
}
_LISTED = 24  # at most so many names in one error message


def did_you_mean(word: str, known_words: Iterable[str]) -> str:
    """Return ` Did you mean 'theta'?`, or the list of what exists."""
    lower = {item.lower(): item for item in sorted(known_words, reverse=True)}
    close = difflib.get_close_matches(word.lower(), lower, n=1)
    if close:
        return f" Did you mean {lower[close[0]]!r}?"
    there = sorted(lower.values())
    if len(there) > _LISTED:
        return f" Available: {', '.join(there[:_LISTED])}, ..."
    return f" Available: {', '.join(there)}." if there else ""


def resolve(kind: str, table: Mapping[str, str], name: str) -> type:
    """Return the class that `name` refers to: a key of `table`, `package.module:Class`, or `file.py:Class`."""
    from lengthwise import loading

    if name in loading.GIVEN:
        return loading.GIVEN[name]
    if name in table:
        module, _, attribute = table[name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    where, colon, attribute = name.rpartition(":")
    if not colon:
        if name.endswith(".py"):
            there = loading.class_names_in_file(name)
            raise SpecError(f"{name!r} is a file; name the class in it too, e.g. {name}:{(there or ['Mine'])[0]}")
        hint = _SEVERAL.get(kind, " Name one.") if "," in name else did_you_mean(name, table)
        raise SpecError(f"unknown {kind} {name!r}.{hint}")
    if where in table and attribute.islower():  # not a class, which has a capital, but an option without its value
        raise SpecError(f"option {attribute!r} of {kind} {where!r} has no value; write {name}=value")
    if where == "__main__":
        raise SpecError(f"{attribute} was defined in a notebook or session; define it again and pass the class itself")
    return loading.load_class(where, attribute)


def describe_error_with_line(error: BaseException, file: str) -> str:
    """Describe an error with the line in the file `file`, which is the user's."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}: {(error.text or '').strip()}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    place = f"line {lines[-1]}: " if lines else ""
    words = one_line(str(error))
    if isinstance(error, NotImplementedError) and frames and not words:
        words = f"{frames[-1].name} is not written"
    return f"{place}{type(error).__name__}: {words}"


def one_line(text: str) -> str:
    """Return the text on one line, for an error message."""
    return " ".join(text.split())


# --- options ---------------------------------------------------------------------------------------------------------


def options(cls: type, positional_count: int | None = None) -> dict[str, inspect.Parameter]:
    """Return the options of a class: the keyword-only arguments of its constructor, after so many other ones.
    Another argument, not keyword-only or without a type, is an error if their count is given: it would be ignored.
    """
    found: dict[str, inspect.Parameter] = {}
    if cls.__init__ is object.__init__:
        return found
    _, *parameters = inspect.signature(cls.__init__).parameters.values()
    for index, item in enumerate(parameters):
        if item.kind is inspect.Parameter.KEYWORD_ONLY and item.annotation is not inspect.Parameter.empty:
            found[item.name] = item
        elif positional_count is not None and (index >= positional_count or item.kind is inspect.Parameter.VAR_KEYWORD):
            if dataclasses.is_dataclass(cls):
                raise SpecError(
                    f"{item.name!r} of {cls.__qualname__} cannot be an option, which is keyword-only: "
                    f"write @dataclass(frozen=True, kw_only=True) above `class {cls.__qualname__}`"
                )
            raise SpecError(
                f"argument {item.name!r} of {cls.__qualname__} cannot be an option, which is keyword-only and typed, "
                f"e.g. def __init__(self, geometry, *, {item.name}: float = 1.0)"
            )
    return found


LARGEST = 10_000_000  # what an option may be; more is a slip, and could take all memory before it is noticed


def _refuse_huge(kind: str, name: str, key: str, value: object) -> None:
    """Raise for a number that no option can mean, also inside a list."""
    if isinstance(value, tuple | list):
        for one in value:
            _refuse_huge(kind, name, key, one)
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise SpecError(f"option {key!r} of {kind} {name!r} is at most {LARGEST:,}, not {format_value(value)[:30]}")


def checked_options(kind: str, cls: type, spec: Spec, positional_count: int = 0) -> dict[str, object]:
    """Return the spec's options as keyword arguments of `cls`; raise for an unknown name or a wrong type."""
    from pydantic import TypeAdapter, ValidationError

    known = options(cls, positional_count)
    # Type hints of a dataclass field must be resolved in the module that defines it, which may be another one.
    hints = typing.get_type_hints(cls if dataclasses.is_dataclass(cls) else cls.__init__)
    checked: dict[str, object] = {}
    for key, value in spec.options:
        if key not in known:
            hint = did_you_mean(key, known) if known else " It has no options."
            raise SpecError(f"{kind} {spec.name!r} has no option {key!r}.{hint}")
        _refuse_huge(kind, spec.name, key, value)
        wanted = hints.get(key, object)
        if wanted is str and isinstance(value, bool | int | float):
            value = format_value(value)
        try:
            checked[key] = TypeAdapter(wanted).validate_python(value, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            reason = {"bool_type": "write true or false", "tuple_type": "write a list, e.g. [0,1,5]"}.get(
                first["type"], first["msg"]
            )
            raise SpecError(
                f"option {key!r} of {kind} {spec.name!r} cannot be {format_value(value)!r}: {reason}"
            ) from error
    missing = [key for key, item in known.items() if item.default is inspect.Parameter.empty and key not in checked]
    if missing:
        raise SpecError(f"{kind} {spec.name!r} needs {missing[0]!r}; write {spec.name}:{missing[0]}=...")
    return checked


def require_known_fields(kind: str, name: str, model: type[BaseModel], fields: Iterable[str]) -> None:
    """Refuse fields that a preset's model does not have; `also_called` of the model maps aliases, for the hint."""
    for field in fields:
        if field not in model.model_fields:
            known = getattr(model, "also_called", {}).get(field)
            hint = f" It is called {known!r}." if known else did_you_mean(field, model.model_fields)
            raise SpecError(f"{kind} {name!r} has no option {field!r}.{hint}")


def validated(kind: str, name: str, model: type[M], fields: Mapping[str, object]) -> M:
    """Build the pydantic model of these fields; a wrong type or value becomes a `SpecError`."""
    from pydantic import ValidationError

    try:
        return model.model_validate(fields)
    except ValidationError as error:
        field, value, reason = first_mistake(error)
        raise SpecError(f"option {field!r} of {kind} {name!r} cannot be {value!r}: {reason}") from error


def first_mistake(error: ValidationError) -> tuple[str, object, str]:
    """Return the field, the value and the message of the first mistake that pydantic found."""
    first = error.errors(include_url=False)[0]
    return ".".join(str(part) for part in first["loc"]), first["input"], first["msg"]


def canonical(
    kind: str, table: Mapping[str, str], spec: Spec, positional_count: int = 0, cls: type | None = None
) -> Spec:
    """Return the canonical form of a spec: options checked and typed, those that equal their default left out."""
    cls = cls or resolve(kind, table, spec.name)
    known = options(cls)
    checked = checked_options(kind, cls, spec, positional_count)
    kept = {key: _plain(value, key) for key, value in checked.items() if value != known[key].default}
    return Spec(spec.name, tuple(kept.items()))


def build(kind: str, table: Mapping[str, str], base: type, spec: Spec, arguments: Sequence[object] = ()) -> object:
    """Build the object that `spec` describes: an instance of `base` from `arguments` and the spec's options."""
    cls = resolve(kind, table, spec.name)
    if not issubclass(cls, base):
        raise SpecError(
            f"{spec.name!r} is not {_a(kind)}: the class must derive from {base.__module__}.{base.__qualname__}"
        )
    chosen = checked_options(kind, cls, spec, len(arguments))
    try:
        return cls(*arguments, **chosen)
    except SpecError:
        raise
    except (Exception, SystemExit) as error:
        source = inspect.getsourcefile(cls) or ""
        raise SpecError(f"{kind} '{spec}' could not be built: {describe_error_with_line(error, source)}") from error


def _a(kind: str) -> str:
    return kind if kind.endswith("s") else f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


P = typing.ParamSpec("P")
R = typing.TypeVar("R")


def suggests(function: typing.Callable[P, R]) -> typing.Callable[P, R]:
    """Decorate a function so that an unknown keyword raises with a suggestion."""
    known = [name for name, item in inspect.signature(function).parameters.items() if item.kind != item.VAR_KEYWORD]
    open_ended = any(item.kind == item.VAR_KEYWORD for item in inspect.signature(function).parameters.values())

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in () if open_ended else kwargs:
            if name not in known:
                raise TypeError(f"{function.__name__}() has no keyword {name!r}.{did_you_mean(name, known)}")
        return function(*args, **kwargs)

    return checked


# --- identity --------------------------------------------------------------------------------------------------------


def digest(*key: object, bits: int = 128) -> int:
    """Return a hash of `key` that is the same on any machine: blake2b of its canonical JSON."""
    text = json.dumps(key, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=bits // 8).digest(), "big")

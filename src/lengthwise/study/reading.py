"""Read a study file as plain data, from a safe and unambiguous subset of YAML, with readable error messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar
from unicodedata import category

import yaml
from pydantic import ValidationError

from lengthwise.folder import shipped_file_path
from lengthwise.spec import SpecError, did_you_mean, format_value, one_line

SIZE, DEPTH = 2**20, 32
"""The maximal bytes and nesting depth of a file."""
SHOWN = 50
"""The maximal number of reported mistakes."""


class StudyFileMistakes(ValueError):
    """Several mistakes in one part of the file."""

    def __init__(self, mistakes: Iterable[str]) -> None:
        self.mistakes = list(mistakes)
        super().__init__("; ".join(self.mistakes))

    @classmethod
    def raise_if_any(cls, mistakes: Iterable[str]) -> None:
        """Raise if there are any mistakes."""
        if found := list(mistakes):
            raise cls(found)


def load_yaml(path_or_name: str | Path) -> object:
    """Return the plain data of a YAML file; a bare name may be a recipe that ships with the project."""
    path = Path(path_or_name)
    try:
        if path.suffix == "" and len(path.parts) == 1 and str(path_or_name) in shipped_studies() and not path.is_file():
            path = shipped_studies()[str(path_or_name)]
        with path.open("rb") as file:
            data = file.read(SIZE + 1)
        text = data.decode("utf-8")
    except FileNotFoundError:
        hint = did_you_mean(str(path_or_name), shipped_studies()) if path.suffix == "" else ""
        raise SpecError(f"there is no study {str(path_or_name)!r:.200}; give the path of a YAML file.{hint}") from None
    except IsADirectoryError:
        raise SpecError(f"{path_or_name} is a folder; give the path of a YAML file") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path_or_name} is no text: byte {error.start + 1} is not UTF-8; save it as UTF-8") from None
    except (OSError, ValueError) as error:
        raise SpecError(
            one_printable_line(f"{path_or_name!s:.200} cannot be read: {getattr(error, 'strerror', None) or error}")
        ) from None
    if len(data) > SIZE:
        raise SpecError(f"{path_or_name} is larger than {SIZE:,} bytes; no study is")
    try:
        return yaml.load(text, _Careful)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark is not None else ""
        words = [getattr(error, part, None) for part in ("context", "problem")]
        said = ", ".join(word for word in words if word) or str(error)
        hint = "; indent with spaces" if "'\\t'" in said else ""
        raise SpecError(
            one_printable_line(
                f"{path_or_name}{place}: {'' if isinstance(error, _Refused) else 'no YAML: '}{said}{hint}"
            )
        ) from None
    except (RecursionError, ValueError, OverflowError) as error:
        raise SpecError(one_printable_line(f"{path_or_name}: no YAML: {error}")) from None


@lru_cache(maxsize=1)
def shipped_studies() -> dict[str, Path]:
    """Return the studies that ship with the project, by name."""
    files = sorted(shipped_file_path("").glob("*.yaml"))
    return {path.stem: path for path in files if path.stem != "claims"}  # claims.yaml is not a study


def one_printable_line(text: str) -> str:
    """Return a message as one printable line of limited length."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in one_line(text))
    return line if len(line) <= 600 else f"{line[:600]} ..."


class _Refused(yaml.constructor.ConstructorError):
    """Valid YAML that studies do not allow."""

    def __init__(self, words: str, mark: yaml.Mark) -> None:
        super().__init__(None, None, words, mark)


class _Careful(yaml.SafeLoader):
    """Loads only data that all YAML parsers read alike: no tags, no aliases, no duplicate keys, no `yes` or `no`."""

    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {}  # pyrefly: ignore
    depth = 0

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                raise _Refused(f"a field is a word, not {key.value!r:.80}", key.start_mark)
            if key.value in seen:
                raise _Refused(f"{key.value!r:.80} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        if wrong := [c for c in node.value if category(c) in {"Cc", "Cs"} and c not in "\n\t"]:
            raise _Refused(f"the character U+{ord(wrong[0]):04X} cannot be printed; leave it out", node.start_mark)
        return super().construct_scalar(node)

    def compose_node(self, parent: Any, index: Any) -> Any:  # noqa: ANN401
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _Refused("anchors and aliases (&name, *name) are not used in studies", event.start_mark)
        if event.tag is not None:
            raise _Refused(f"tags ({event.tag!r:.80}) are not used in studies", event.start_mark)
        self.depth += 1
        if self.depth > DEPTH:
            raise _Refused("nested too deeply", event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def refuse(self, node: yaml.ScalarNode) -> None:
        raise _Refused(
            f'readers of YAML differ on {node.value}: write "{node.value}", true, false or 12', node.start_mark
        )


for _tag, _pattern in {
    "null": "~|null|Null|NULL|",
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": "[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "trap": r"(?i:yes|no|on|off)|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?|[-+]?0[box0-9_][0-9a-fA-F_]*"
    r"|[-+]?[0-9]+_[0-9_.]*|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?",
}.items():
    _Careful.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), None)
_Careful.add_constructor("tag:yaml.org,2002:trap", _Careful.refuse)


_WORDS = {
    "missing": "is missing",
    "list_type": "write a list, e.g. [a, b]",
    "too_short": "the list has too few entries",
    "model_type": "write fields below it, or leave it out",
    "dict_type": "write fields below it, or leave it out",
    "string_type": 'write text; what YAML would read otherwise stands in quotes, e.g. "8"',
    "string_too_short": "write some words",
    "string_too_long": "write fewer words",
    "int_type": "write a whole number",
    "float_type": "write a number",
    "finite_number": "write a finite number",
}
_RENAMED = {"pair": "linked"}
_PATTERNS = {
    "name": "write lower-case letters, digits, - and _, a letter first, at most 64",
    "memory": "write a number and a unit, e.g. 2 GiB",
}


def error_lines(error: ValidationError, fields_at: Callable[[tuple[int | str, ...]], list[str]]) -> list[str]:
    """Return each mistake with its place and what to write instead; `fields_at` has the valid fields of a place."""
    found: dict[str, None] = {}
    for one in error.errors(include_url=False):
        place, kind = ".".join(str(part) for part in one["loc"]), one["type"]
        cause = one.get("ctx", {}).get("error")
        if kind == "value_error":
            words = cause.mistakes if isinstance(cause, StudyFileMistakes) else [str(cause)]
        elif kind == "extra_forbidden":
            name = str(one["loc"][-1])[:80]
            renamed = f" It is called {_RENAMED[name]!r} now." if name in _RENAMED else ""
            hint = renamed or did_you_mean(name, fields_at(one["loc"]))
            words = [f"there is no such field.{hint}"]
        elif kind == "missing":
            words = [_WORDS[kind]]
        else:
            plain = one["msg"].removeprefix("Input ")
            best = _PATTERNS[str(one["loc"][-1])] if kind == "string_pattern_mismatch" else _WORDS.get(kind, plain)
            words = [f"{best}, not {format_value(one['input'])!r:.80}"]
        found |= dict.fromkeys(one_printable_line(f"{place:.200}: {word}" if place else word) for word in words)
    lines = list(found)
    return lines[:SHOWN] + ([f"... and {len(lines) - SHOWN} more mistakes"] if len(lines) > SHOWN else [])

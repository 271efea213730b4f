"""Code from outside the package: data that names it is refused unless the user has allowed it to be run."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress

from lengthwise.spec import Spec, SpecError, parse_specs


def code_names(data: object) -> list[str]:
    """Return the classes from outside the package that plain data names, anywhere in it; nothing is imported."""
    if isinstance(data, str):
        found: list[Spec] = []
        for read in (lambda text: [Spec.of(text)], parse_specs):  # a value may be one spec or a list of them
            with suppress(SpecError):  # what cannot be read cannot be resolved either
                found += read(data)
        named = [
            spec.name for spec in found if re.fullmatch(r".+:[^\W\d][\w.]*", spec.name)
        ]  # file.py:Class, module:Class
        return list(dict.fromkeys(named + code_names([value for spec in found for _, value in spec.options])))
    if isinstance(data, Mapping):
        return code_names(list(data.values()))
    return [name for one in data for name in code_names(one)] if isinstance(data, list | tuple) else []


_CONSENT = "give --allow-code, or allow_code=True in Python"


def refuse_code(data: object, source: str, allow_code: bool, consent: str = _CONSENT) -> None:
    """Raise if data names code from outside the package that the user has not allowed; if it is allowed, say which."""
    require_consent(code_names(data), source, allow_code, consent)


def require_consent(names: Iterable[str], source: str, allow_code: bool, consent: str = _CONSENT) -> None:
    """Raise if this code is not allowed to be run; otherwise warn which code is run, once for each source."""
    if not (listed := sorted(set(names))):
        return
    told = ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
    if not allow_code:
        raise SpecError(
            f"{source} names code from outside the package ({told}), which would be run; look at it, then {consent}"
        )
    if (source, told) not in _TOLD:
        _TOLD.add((source, told))
        warnings.warn(f"{source} runs code from outside the package: {told}", stacklevel=3)


_TOLD: set[tuple[str, str]] = set()

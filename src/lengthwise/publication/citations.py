"""BibTeX entries for encodings, kinds of positions, tasks, the original study, and this project itself.

An entry of `data/citations.bib` is found by the arXiv number in a class's `paper`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from lengthwise import __version__

YEAR = 2026
"""The year of this version of the software."""
URL = ""
"""The address of the project; empty until it is decided."""
STUDY = "2305.19466"
"""The study this project re-implements."""
VARIANTS: dict[str, dict[object, str]] = {
    "scaling": {"linear": "Chen et al. 2023, arXiv:2306.15595", "yarn": "Peng et al. 2024, arXiv:2309.00071"},
    "p": {None: "Barbero et al. 2025, arXiv:2410.06205"},
}
"""Additional papers for an option of rope, by its value; the key None stands for any value."""
_NUMBER = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def arxiv_numbers(paper: str) -> list[str]:
    """Return the arXiv numbers that a class's `paper` names."""
    return _NUMBER.findall(paper)


@cache
def entries() -> dict[str, str]:
    """Return arXiv number → BibTeX for every entry in `data/citations.bib`."""
    text = files("lengthwise.publication").joinpath("data", "citations.bib").read_text("utf-8")
    found = (one.strip() for one in re.split(r"\n(?=@)", text))
    return {re.search(r"eprint\s*= \{(.+)\}", one)[1]: one for one in found}  # pyrefly: ignore[unsupported-operation]


def short_entry(paper: str) -> str | None:
    """Make an entry from `paper` alone, e.g. `Chi et al. 2022, arXiv:2205.09921`, if there is no full entry."""
    found = re.match(r"(\S+)(?: et al\.)? (\d{4}), arXiv:(\d{4}\.\d{4,5})$", paper)
    if found is None:
        return None
    name, year, number = found.groups()
    author = f"{name} and others" if " et al." in paper else name
    return _bibtex("misc", f"{name.lower()}{year}", author=author, year=year, **_archive(number))


def project_bibtex() -> str:
    """Return the BibTeX of this project, as in CITATION.cff."""
    address = {"url": URL} if URL else {}
    return _bibtex(
        "misc",
        "lengthwise",
        author="{The lengthwise authors}",
        title="lengthwise: positional encodings and length generalization of decoder-only {Transformers}",
        year=str(YEAR),
        note=f"Software, version {__version__}, Apache-2.0",
        **address,
    )


def _archive(number: str) -> dict[str, str]:
    return {"eprint": number, "archiveprefix": "arXiv", "url": f"https://arxiv.org/abs/{number}"}


def _bibtex(kind: str, key: str, **fields: str) -> str:
    width = max(map(len, fields))
    lines = [f"  {name:<{width}} = {{{value}}}," for name, value in fields.items()]
    return "\n".join([f"@{kind}{{{key},", *lines, "}"])

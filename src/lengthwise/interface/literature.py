"""What was published: the original study's numbers and figures, its claims against our results, and BibTeX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.display import Display, Part
from lengthwise.encoding import ENCODINGS, POSITIONS
from lengthwise.folder import OUTPUT
from lengthwise.publication import CODE, PAPER, TOPICS, tables
from lengthwise.publication import ENCODINGS as PUBLISHED_NAMES
from lengthwise.publication import Table as PublishedTable
from lengthwise.run.lease import STORE
from lengthwise.spec import Spec, SpecError, canonical, did_you_mean, parse_specs, resolve
from lengthwise.task import TASKS

if TYPE_CHECKING:
    from lengthwise.reporting.claims import ClaimVerdict
    from lengthwise.reporting.frequencies import Verdict


class PublishedTables(Display, list[PublishedTable]):
    """The published tables of a topic."""

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """Each table with its source and its known defects."""
        for number, table in enumerate(self):
            yield from [Part("")] if number else []
            yield from table.display_parts(width)
        if any(name in row for table in self for row in table.rows for name in PUBLISHED_NAMES):
            named = ", ".join(f"{label} is {name}" for name, label in PUBLISHED_NAMES.items())
            yield Part(f"\n{named}", "dim")

    def plain(self) -> object:
        """The tables as plain data."""
        return [table.plain() for table in self]


def published(topic: str) -> PublishedTables:
    """Return the original paper's numbers on a topic, with their source and known defects.

    >>> published("mrr")[0].source != ""
    True
    """
    return PublishedTables(tables(topic))


@dataclass(frozen=True, repr=False)
class PublishedTopics(Display):
    """The topics and figures of the original study."""

    topics: list[dict[str, Any]]
    figures: list[dict[str, Any]]

    def display_parts(self, width: int = 80) -> list[Part]:
        """Two tables."""
        return [Part(self.topics), Part(""), Part(self.figures), Part(f"\n{PAPER}; {CODE}")]

    def plain(self) -> object:
        """Topics and figures with their source."""
        return {"source": PAPER, "code": CODE, "topics": self.topics, "figures": self.figures}


def published_topics() -> PublishedTopics:
    """List the topics of `published` and the figures of `published_figure`.

    >>> [row["topic"] for row in published_topics().topics][:2]
    ['accuracy', 'mrr']
    """
    from lengthwise.reporting.published import FIGURES

    return PublishedTopics(
        [{"topic": name, "has": words} for name, words in TOPICS.items()],
        [{"figure": name, "shows": title} for name, (title, _) in FIGURES.items()],
    )


@dataclass(frozen=True, repr=False)
class PublishedFigure(Display):
    """A figure of the original study, drawn again."""

    figure: str
    shows: str
    files: list[Path]

    def display_parts(self, width: int = 80) -> list[Part]:
        """Its title and its files."""
        named = ", ".join(map(str, self.files))
        return [Part(f"Figure {self.figure} of {PAPER}: {self.shows}"), Part(f"figure: {named}", wrap=False)]

    def plain(self) -> object:
        """Title, source and files."""
        return {
            "figure": self.figure,
            "shows": self.shows,
            "source": PAPER,
            "files": [str(path) for path in self.files],
        }


def published_figure(figure: str, to: str | Path = OUTPUT) -> PublishedFigure:
    """Draw a figure of the original study again, from its published numbers.

    >>> published_figure("E.2", "figures")
    """
    from lengthwise.reporting.published import FIGURES, redraw_published_figure

    files = list(redraw_published_figure(figure, Path(to)))
    return PublishedFigure(figure, FIGURES[figure][0], files)


# --- claims ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Claims(Display):
    """Published claims, and what stored results say to each."""

    judged: list[ClaimVerdict]
    committed: dict[str, str | None]
    """When the claims and the rows were committed: the rules must be older than the results."""
    predictions: list[Verdict] = field(default_factory=list)
    """Our own predictions about rotary frequencies, and their rivals; none before their study has ended."""

    def display_parts(self, width: int = 80) -> list[Part]:
        """The tables, and the dates."""
        told = ", ".join(f"{what} {when or 'not committed'}" for what, when in self.committed.items())
        lines = [{**one.line(), "source": one.claim.source} for one in self.judged]
        own = [Part("\npredictions of studies/frequencies.yaml"), Part(self._predictions())] if self.predictions else []
        return [Part(lines), *own, Part(f"committed: {told}", "dim")]

    def _predictions(self) -> list[dict[str, str]]:
        return [asdict(one) for one in self.predictions]

    def plain(self) -> object:
        """The dates and a line for each claim and prediction."""
        judged = [one.line() for one in self.judged]
        return {"committed": self.committed, "claims": judged, "predictions": self._predictions()}


def claims(store: str = STORE, results: str | Path | None = None) -> Claims:
    """Check published claims against stored results, each by a rule that was committed before the results existed.

    >>> claims()
    """
    from lengthwise.folder import last_commit_date, shipped_file_path
    from lengthwise.reporting.analysis_claims import attention_estimates, scratchpad_estimates
    from lengthwise.reporting.claims import (
        StudyResults,
        judge_claim,
        read_claims,
        read_theory_estimates,
    )
    from lengthwise.reporting.findings import collect_findings
    from lengthwise.reporting.frequencies import frequency_verdicts
    from lengthwise.reporting.numbers import compute_numbers
    from lengthwise.study.add import committed_results_folder, find_committed_file
    from lengthwise.study.bundle import Bundle
    from lengthwise.study.file import StudyFile
    from lengthwise.study.plan import Planned
    from lengthwise.study.reading import shipped_studies
    from lengthwise.study.store import Store

    listed, rows = read_claims(), dict[str, StudyResults]()
    dates = {"claims": last_commit_date(shipped_file_path("claims.yaml"))}
    named = [name for claim in listed for name in (claim.study, *claim.settings)]
    named += ["frequencies", "frequencies-lengths"]
    for name in dict.fromkeys(name for name in named if name in shipped_studies()):
        study = StudyFile.read(str(name))
        where = results or committed_results_folder(study)
        try:
            found = collect_findings(Planned(study), Store(store), None if where is None else Bundle(where))
        except SpecError:
            continue  # nothing of it is done: its claims are not tested
        rows[str(name)] = StudyResults(found, compute_numbers(found))
        dates[f"rows of {name}"] = None if where is None else last_commit_date(Path(where) / "rows.parquet")
    theory, attention = (find_committed_file(name) for name in ("theory/claims.json", "attention"))
    measured = {} if theory is None else dict(read_theory_estimates(theory))
    if theory is not None:
        dates["measurements of theory"] = last_commit_date(theory)
    if attention is not None:
        measured |= attention_estimates(attention, listed)
        dates["measurements of attention"] = last_commit_date(attention / "divergence.parquet")
    if "laptop-scratchpads" in rows:
        measured |= scratchpad_estimates(rows["laptop-scratchpads"], listed)
    own = rows.get("frequencies")
    predictions = [] if own is None else frequency_verdicts(own, rows.get("frequencies-lengths"))
    return Claims([judge_claim(claim, rows, measured) for claim in listed], dates, predictions)


# --- citations -------------------------------------------------------------------------------------------------------


def cite(names: Sequence[str] = ()) -> str:
    """Return the BibTeX of encodings, positions, tasks or studies; without names, of lengthwise and the original study.

    >>> cite(["rope"]).startswith("@")
    True
    """
    from lengthwise.publication.citations import STUDY, arxiv_numbers, entries, project_bibtex, short_entry

    wanted: list[str] = []  # arXiv numbers, and papers that have none here
    for name in names or ["lengthwise"]:
        for paper in _papers(name):
            wanted += [number for number in arxiv_numbers(paper) if number in entries()] or [paper]
    if not names:
        wanted.append(STUDY)
    found = []
    for one in dict.fromkeys(wanted):
        found.append(project_bibtex() if one == "lengthwise" else entries().get(one) or short_entry(one) or f"% {one}")
    return "\n\n".join(found)


def _papers(name: str, outside: bool = True) -> list[str]:
    """Return what a name rests on: the `paper` of a class, those of everything in a study, or `lengthwise` itself."""
    from lengthwise.publication.citations import STUDY
    from lengthwise.study.file import StudyFile
    from lengthwise.study.reading import shipped_studies

    if name == "lengthwise":
        return ["lengthwise"]
    if name in shipped_studies() or name.endswith((".yaml", ".yml")):
        study = StudyFile.read(name)
        parts = [str(spec) for one in (*study.encodings, *study.positions, *study.tasks) for spec in parse_specs(one)]
        # A study's code from outside is not loaded for the sake of a name.
        return ["lengthwise", f"arXiv:{STUDY}", *(paper for part in parts for paper in _papers(part, outside=False))]
    listed = list(dict.fromkeys(parse_specs(name)))
    if len(listed) > 1 or (listed and "*" in name and str(listed[0]) != name):
        return [paper for spec in listed for paper in _papers(str(spec), outside)]
    spec = Spec.of(name)
    if spec.name == "consecutive":
        return ["consecutive: 0, 1, 2, ... is nobody's"] if outside else []
    own = getattr(_named_class(spec, outside), "paper", "")
    return [own or f"{name}: names no publication; cite where it comes from", *_papers_of_options(spec)]


def _named_class(spec: Spec, outside: bool) -> type:
    """Return the class that a name stands for; an option that does not exist is an error."""
    from lengthwise.encoding.signature import canonical_encoding, encoding_stub
    from lengthwise.study.reading import shipped_studies

    if spec.name in ENCODINGS:
        canonical_encoding(spec)
        return encoding_stub(spec.name)
    for kind, table in (("task", TASKS), ("positions", POSITIONS)):
        if spec.name in table:
            if spec.options:  # a bare `file` names no file, and need not
                canonical(kind, table, spec)
            return resolve(kind, table, spec.name)
    if ":" in spec.name or spec.name.endswith(".py"):
        return resolve("encoding or task", {}, spec.name) if outside else object
    known = [*ENCODINGS, *TASKS, *POSITIONS, *shipped_studies(), "lengthwise"]
    raise SpecError(f"there is nothing to cite under {spec.name!r}.{did_you_mean(spec.name, known)}")


def _papers_of_options(spec: Spec) -> list[str]:
    """Return the papers behind options of rope, e.g. of a scaling."""
    from lengthwise.encoding.signature import canonical_encoding
    from lengthwise.publication.citations import VARIANTS

    if spec.name != "rope":
        return []
    kept = [(VARIANTS.get(key, {}), value) for key, value in canonical_encoding(spec).options]
    return [papers[key] for papers, value in kept for key in (value, None) if key in papers]

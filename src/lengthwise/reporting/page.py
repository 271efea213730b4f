"""The report as one self-contained HTML page: question, verdict, figures, all numbers, and how to reproduce it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise import __version__
from lengthwise.display import Part
from lengthwise.folder import Folder, last_commit_date, shipped_file_path
from lengthwise.reporting import figures, overview
from lengthwise.reporting.agreement import agreement_sentences
from lengthwise.reporting.bars import accuracy_bars
from lengthwise.reporting.claims import StudyResults, judge_claim, read_claims
from lengthwise.reporting.comparisons import PAIRS, Line
from lengthwise.reporting.drawing import Drawing
from lengthwise.reporting.findings import Findings
from lengthwise.reporting.frequencies import frequency_curve, period_of
from lengthwise.reporting.tables import Tables, is_numeric_column
from lengthwise.reporting.words import describe_protocol, verdict
from lengthwise.statistics.ranks import task_seed_scores
from lengthwise.statistics.table import learned_cells

if TYPE_CHECKING:
    from markupsafe import Markup

ANATOMIES = 15
"""The number of tasks whose failures are drawn."""
OPEN = 3
"""The number of tasks whose sections are open at first."""


class Page(Tables):
    """The report page: `Page(found).write("report")` writes index.html, report.json, and figures with their data."""

    def __init__(self, found: Findings, command: str = "") -> None:
        super().__init__(found)
        self._command = command

    def claims(self) -> list[Line]:
        """Return the verdicts on the published claims that this study tests."""
        about = [claim for claim in read_claims() if claim.study == self.found.study.name]
        here = {self.found.study.name: StudyResults(self.found, self.numbers)}
        return [judge_claim(claim, here).line() for claim in about]

    # --- what is on it -----------------------------------------------------------------------------------------------

    @property
    def verdict(self) -> str:
        """The paragraph that answers the question."""
        return verdict(self.found, self.numbers)

    def short_parts(self, width: int = 80) -> Iterator[Part]:
        """The verdict, the curves of up to three tasks, and one table: what fits a screen of 80 columns."""
        yield Part(self.verdict, "bold")
        yield from (Part(line, "yellow") for line in self.warnings())
        for task in self.found.tasks if len(self.found.tasks) <= 3 else []:
            yield Part("")
            yield from (Part(line, wrap=False) for line in accuracy_bars(self.found, task, min(width, 80)))
            yield Part(f"{self.found.short(task)}: exact match by length, ▁ 0 to █ 1; | ends what was trained", "dim")
        yield Part("")
        yield Part(self.rank_table())

    def all_parts(self, width: int = 80) -> Iterator[Part]:
        """The verdict and all tables."""
        yield from self.short_parts(width)
        yield Part(self.rank_table_caption(), "dim")
        if self.numbers.differences:
            yield from (Part(""), Part(self.difference_table()), Part(self.difference_table_caption(), "dim"))
        if troubles := self.training_problem_table():
            yield from (Part(""), Part(troubles))
        if spikes := self.spike_text():
            yield from (Part(""), Part(spikes))
        for task in self.found.tasks if len(self.found.tasks) <= 3 else []:
            yield from (Part(""), Part(task, "bold"), Part(self.task_summary_table(task)))

    def named_tables(self) -> dict[str, Sequence[Line]]:
        """Return ranks, differences, and the table of each task."""
        found: dict[str, Sequence[Line]] = {"ranks": self.rank_table(), "differences": self.difference_table()}
        return found | {task: self.task_summary_table(task) for task in self.found.tasks}

    # --- figures -----------------------------------------------------------------------------------------------------

    def main_figure(self) -> Drawing:
        """Return the figure that answers the question: the curves of the only task, or the means over tasks."""
        found, here = self.found, self.numbers
        if len(found.tasks) == 1:
            return figures.study_accuracy_curves(found, found.tasks[0])
        lines = [
            {
                "encoding": name,
                "value": one.value,
                "low": one.seeds.low,
                "high": one.seeds.high,
                "tasks low": one.tasks.low,
                "tasks high": one.tasks.high,
            }
            for name in self.encodings_best_first()
            if (one := here.means[name]).value is not None
        ]
        alt = "Mean accuracy at unseen lengths: " + "; ".join(
            f"{found.label(str(line['encoding']))} {line['value']:.2f}" for line in lines[:12]
        )
        title = "mean accuracy at unseen lengths"
        return overview.interval_drawing("means", title, alt + ".", lines, label=found.label)

    def overview(self) -> list[Drawing]:
        """Return the figures that show all tasks at once."""
        found, made = self.found, []
        if len(found.tasks) > 1:
            cells = learned_cells(self.numbers.scores)
            made = [
                overview.length_maps_drawing(found, self.encodings_best_first()),
                overview.accuracy_heat_map(found, cells),
                overview.rank_share_drawing(found, self._rank_shares()),
                overview.reach_drawing(found),
            ]
        elif len(found.encodings) > 1:
            made = [overview.reach_drawing(found)]
        if sum(period_of(name) is not None for name in found.encodings) > 2:
            made.insert(0, frequency_curve(StudyResults(found, self.numbers)))
        if len(found.encodings) > PAIRS:
            made.append(overview.pair_difference_drawing(found, self.encodings_best_first(), self._every_pair()))
        return made

    def _every_pair(self) -> dict[tuple[str, str], tuple[float, bool]]:
        if self.single_task:
            listed = [
                (one.one, one.other, one.median.value, one.seeds_agree)
                for one in self.numbers.pairwise_differences(self.found)
            ]
        else:
            listed = [(one.one, one.other, one.seeds.value, one.settled) for one in self.numbers.differences]
        return {(one, other): (gap, sure) for one, other, gap, sure in listed if gap is not None}

    def _rank_shares(self) -> dict[str, list[float]]:
        """Return encoding → share of queries with rank 1, 2, ...; tied encodings share the ranks that they occupy."""
        asked = task_seed_scores(self.numbers.scores, self.found.encodings)
        many = len(asked.encodings)
        shares = {name: [0.0] * many for name in self.numbers.rank_statistics.encodings}
        for line in asked.scores_QE.tolist():
            for name, score in zip(asked.encodings, line, strict=True):
                first, tied = sum(other > score for other in line), line.count(score)
                for place in range(first, first + tied):
                    shares[name][place] += 1 / tied / len(asked.queries)
        return shares

    @cached_property
    def _first(self) -> list[Drawing]:
        """The main figure and the overview figures, cached."""
        return [self.main_figure(), *self.overview()]

    @cached_property
    def drawings(self) -> list[Drawing]:
        """Every figure of the page."""
        found = self.found
        listed = [*self._first]
        listed += [figures.study_accuracy_curves(found, task) for task in found.tasks if len(found.tasks) > 1]
        listed += [figures.answer_kinds_drawing(found, task) for task in found.tasks[:ANATOMIES]]
        if (one := figures.training_loss_drawing(found)) is not None:
            listed.append(one)
        return listed

    # --- writing -----------------------------------------------------------------------------------------------------

    def html(self) -> str:
        """Return the page as HTML."""
        import jinja2

        source = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
        template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(source)
        found, here = self.found, self.numbers
        made = {drawing.name: drawing for drawing in self.drawings}
        tasks = [self._task(number, task, made) for number, task in enumerate(found.tasks)]
        main_figure, *rest = self._first
        return template.render(
            title=found.study.name,
            study=found.study,
            verdict=self.verdict,
            warnings=self.warnings(),
            main_figure=main_figure,
            main_words=self._main_words(),
            overview=rest,
            rank_table=self.rank_table(),
            rank_table_caption=self.rank_table_caption(),
            mrr=self.mrr_table(),
            categories=self.category_table(),
            wins=self.wins_table(),
            differences=self.difference_table(),
            difference_table_caption=self.difference_table_caption(),
            sensitivity=self.sensitivity_table() if len(found.encodings) > 1 else [],
            tasks=tasks,
            failure_words="All seeds together; the dashed line ends what was trained. " + _told_failures(found),
            training=made.get("training"),
            troubles=self.training_problem_table(),
            spikes=self.spike_text(),
            names=self.name_table(),
            proof=self._proof(),
            proof_holds=found.proof is None or found.proof.holds,
            guard=found.guard,
            rates=self.learning_rate_table(),
            deviations=found.study.deviations,
            protocol=describe_protocol(found),
            published=self.published_table(),
            published_words=_PUBLISHED,
            agreement=agreement_sentences(found, here),
            claims=self.claims(),
            claims_words=self._claims_words(),
            costs=self.costs(),
            command=self._command,
            footer=f"made by lengthwise {__version__}; {len(found.items)} runs, {here.scores.height} scores",
            figure=_figure,
            table=_table,
        )

    def _main_words(self) -> str:
        if not self.single_task:
            return _MEANS
        return _MAP if figures.use_heat_map(self.found.encodings) else _CURVES

    def _proof(self) -> str:
        """Return the sentence about what differs between the runs."""
        if self.found.proof is None:
            return ""
        by_rule = "; but for the learning rate, which the rule below has set" if self.found.study.lr is not None else ""
        return f"{self.found.proof.sentence}{by_rule}."

    def _claims_words(self) -> str:
        """Say when the rules and when the rows were committed."""
        rules = last_commit_date(shipped_file_path("claims.yaml"))
        rows = max((last_commit_date(Path(one) / "rows.parquet") or "" for one in self.found.sources), default="")
        return f"Rules committed {rules or 'not yet'}, rows {rows or 'not yet'}."

    def _task(self, number: int, task: str, made: Mapping[str, Drawing]) -> Line:
        trained, unit = self.found.trained[task]
        best = max(
            (name for name in self.found.encodings if (task, name) in self.numbers.cells),
            key=lambda name: self.numbers.cells[task, name].median.value or -1.0,
        )
        learned = any(reached.learned_seed_count for key, reached in self.numbers.reach.items() if key[0] == task)
        furthest = f"furthest: {self.found.label(best)}" if learned else "no encoding learned it"
        weak = "; not every encoding learned it" if learned and task not in self.numbers.learned else ""
        curve = made.get(f"curve-{figures.task_file_name(task)}") or figures.study_accuracy_curves(self.found, task)
        return {
            "slug": figures.task_file_name(task),
            "short": self.found.short(task),
            "line": f"trained up to {trained} {unit}; {furthest}{weak}",
            "open": number < OPEN,
            "curve": None if self.single_task else curve,
            "anatomy": made.get(f"anatomy-{figures.task_file_name(task)}"),
            "table": self.task_summary_table(task),
            "words": f"{task}. Unseen: lengths {trained + 1} to {2 * trained}; beyond is in no mean.",
            "answers": self.wrong_answer_examples(task),
        }

    def write(self, to: str | Path, with_figures: bool = True, pdf: bool = False) -> list[Path]:
        """Write `index.html`, `report.json`, and figures with their data."""
        folder, paths = Folder(to), [Path(to) / "index.html"]
        folder.write("index.html", self.html())
        if with_figures:
            for drawing in self.drawings:
                paths += drawing.write(Path(to) / "figures", ("svg", "pdf") if pdf else ("svg",))
        folder.write("report.json", json.dumps(self.plain(), indent=1))
        return [*paths, Path(to) / "report.json"]

    def plain(self) -> Line:
        """Return the verdict and the tables as plain data."""
        return {
            "study": self.found.study.name,
            "verdict": self.verdict,
            "warnings": self.warnings(),
            "ranks": self.rank_table(),
            "differences": self.difference_table(all_pairs=True),
            "encodings": {self.found.label(name): name for name in self.found.encodings},
            "diverged": {key: dict(told) for key, told in self.found.diverged.items()},
            "training": self.training_problem_table(),
            "means": {
                name: {"seeds": one.seeds.plain(), "tasks": one.tasks.plain()}
                for name, one in self.numbers.means.items()
            },
            "mrr": {words: one.values for words, one in self.numbers.mrr.items()},
            "agreement": agreement_sentences(self.found, self.numbers),
            "tasks": {task: self.task_summary_table(task) for task in self.found.tasks},
        }


def _told_failures(found: Findings) -> str:
    import polars as pl

    beyond = found.cells.filter(~pl.col("seen"))
    total = {kind: int(beyond[kind].sum()) for kind in figures.KINDS if kind != "correct"}
    wrong = sum(total.values())
    if not wrong:
        return "Nothing failed at unseen lengths."
    parts = [f"{100 * count / wrong:.0f} % {figures.KINDS[kind][0]}" for kind, count in total.items() if count]
    return f"Of what fails at unseen lengths: {', '.join(parts)}."


def parts_page(title: str, sections: Mapping[str, Sequence[Part]], drawings: Sequence[Drawing]) -> str:
    """Return any result as a page in the style of the report: parts under headings, then figures."""
    import jinja2

    source = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    head = source[: source.index("<main>")]  # one style for all pages
    body = """<main><p class="soft">lengthwise</p><h1>{{ title }}</h1>
{% for heading, parts in sections.items() %}<h2>{{ heading }}</h2>
{% for part in parts %}{% if part.content is string %}<p class="{{ styles.get(part.style, "") }}">{{ part.content }}</p>
{% else %}{{ table(part.content) }}{% endif %}{% endfor %}{% endfor %}
{% for drawing in drawings %}{{ figure(drawing) }}{% endfor %}
<footer class="soft">made by lengthwise {{ version }}</footer></main></body></html>
"""
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(head + body)
    styles = {"red": "warn", "green": "good", "dim": "soft", "bold": "verdict"}
    return template.render(
        title=title,
        sections=sections,
        drawings=drawings,
        styles=styles,
        version=__version__,
        figure=_figure,
        table=_table,
    )


def _figure(drawing: Drawing) -> Markup:
    """Return an image with its alternative text; everything is escaped."""
    from markupsafe import Markup

    picture = Markup('<figure><img src="{}" alt="{}"></figure>')
    return picture.format(drawing.uri(), drawing.alt)


def _table(lines: Sequence[Mapping[str, Any]]) -> Markup:
    """Return a table that scrolls on narrow screens; columns of numbers are right-aligned."""
    from markupsafe import Markup, escape

    if not lines:
        return Markup("")
    wide = {name for name in lines[0] if any(len(str(line.get(name, ""))) > 44 for line in lines)}
    kind = {name: "num" if is_numeric_column(lines, name) else "wrap" if name in wide else "" for name in lines[0]}
    head = Markup("").join(Markup('<th class="{}">{}</th>').format(kind[name], name) for name in lines[0])
    rows = Markup("").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(
                Markup('<td class="{}">{}</td>').format(kind[name], escape(str(line.get(name, ""))))
                for name in lines[0]
            )
        )
        for line in lines
    )
    return Markup(_SCROLLS).format(head, rows)


_SCROLLS = (
    '<div class="scroll" tabindex="0" role="region" aria-label="table"><table><thead><tr>{}</tr></thead>'
    "<tbody>{}</tbody></table></div>"
)
_PUBLISHED = (
    "Published / ours: mean accuracy at unseen lengths. Published: Kazemnejad et al. 2023, three seeds of a 110M "
    "decoder; sizes, lengths and budgets differ from ours."
)
_CURVES = "Thin: every seed. Thick: the median seed. Grey: lengths that were trained on. Dotted: chance."
_MAP = (
    "The median seed's exact match at each length, best encodings on top. White line: the end of the trained lengths."
)
_MEANS = (
    "Dot: mean over tasks. Thick: interval for these tasks and other seeds. Thin: for other tasks like these, "
    "over families of tasks."
)

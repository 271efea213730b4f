"""One self-contained HTML page: the question, the verdict, the figures, every number, and how to make it again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from lengthwise import __version__
from lengthwise.folder import Folder
from lengthwise.report import figures, overview
from lengthwise.report.drawing import ACROSS, Drawing
from lengthwise.report.findings import Findings
from lengthwise.report.numbers import numbers
from lengthwise.report.words import protocol, span, verdict
from lengthwise.statistics.seeds import needed

if TYPE_CHECKING:
    from markupsafe import Markup

Line = dict[str, Any]
OPEN = 3
"""So many tasks are unfolded."""
ANSWERS = 6
"""Wrong answers shown for each task."""
_LONG = 240


class Page:
    """A report: `Page(found).write("report")` writes index.html and, with figures, each with its data."""

    def __init__(self, found: Findings, published: Any = None, claims: Sequence[Line] = (), command: str = "") -> None:  # noqa: ANN401
        self.found, self.numbers = found, numbers(found)
        self._published, self._claims, self._command = published, list(claims), command
        self._drawings: dict[str, Drawing] = {}

    # --- what is on it -----------------------------------------------------------------------------------------------

    @property
    def verdict(self) -> str:
        """The paragraph that answers the question."""
        return verdict(self.found, self.numbers)

    def warnings(self) -> list[str]:
        """What a reader must know before the numbers."""
        found, told = self.found, []
        if len(found.items) < found.planned:
            told.append(
                f"{found.planned - len(found.items)} of {found.planned} runs are not done; they are missing, not 0."
            )
        if found.failed:
            told.append(f"{len(found.failed)} runs failed: {next(iter(found.failed.values()))}")
        one = [item for item in found.items]
        if len({item.cell.seed for item in one}) == 1:
            told.append("There is one seed: no seed interval.")
        edge = [choice for choice in found.choices if choice.rate is not None and choice.edge]
        if edge:
            told.append(f"{len(edge)} of {len(found.choices)} learning rates lie at the edge of what was tried.")
        for kind in ("ceiling", "floor"):
            flat = [figures.short(task) for task, where in self.numbers.flat.items() if where == kind]
            if flat:
                told.append(f"At the {kind} for every encoding, and so telling nothing: {', '.join(flat)}.")
        return told

    def rank_table(self) -> list[Line]:
        """A line for each encoding, best mean first."""
        found, here = self.found, self.numbers
        lines = []
        for name in self._order():
            one = here.means[name]
            seen = [cell.median.value for (_, other), cell in here.seen.items() if other == name]
            known = [value for value in seen if value is not None]
            factors = [
                reached.median.length / found.trained[task][0]
                for (task, other), reached in here.reach.items()
                if other == name and reached.median.length is not None
            ]
            line: Line = {
                "encoding": name,
                "unseen": span(one.seeds),
                "other tasks": span(one.tasks) if one.tasks.low is not None else "one family",
                "mean rank": f"{here.standing.mean_rank[name].value:.2f}" if name in here.standing.mean_rank else "–",
                "seen": f"{sum(known) / len(known):.3f}" if known else "–",
                "reach ÷ L": f"{median(factors):.2f} ({len(factors)} of {len(found.tasks)} tasks)"
                if factors
                else "not learned",
                "missing": len(one.missing) or "",
            }
            for words, five in here.mrr.items():
                which = next((key for key, spec in _five(five.rotary).items() if spec == name), None)
                if which is not None and words.startswith("ours"):
                    line["MRR"] = f"{five.values.get(which, float('nan')):.3f}"
            lines.append(line)
        if any("MRR" in line for line in lines):
            lines = [{**line, "MRR": line.get("MRR", "–")} for line in lines]
        return lines

    def _order(self) -> list[str]:
        means = self.numbers.means
        return sorted(
            self.found.encodings, key=lambda name: -(means[name].value if means[name].value is not None else -1.0)
        )

    def rank_words(self) -> str:
        """Whose numbers these are, and by which recipe."""
        here = self.numbers
        one = here.means[self._order()[0]]
        noise = {"crossed": "each example's outcomes", "binomial": "p(1 − p)/m", "not counted": "not counted"}
        return (
            f"unseen: mean accuracy over lengths L+1..2L, then over tasks, with the 95 % interval “{one.seeds.words}” "
            f"(n = {one.seeds.n} {one.seeds.unit}; test-set noise by {noise[one.seeds.examples]}); other tasks: “{one.tasks.words}”, "
            f"over families (n = {one.tasks.n}). Mean rank over {here.standing.queries} (task, seed) queries, ties shared. MRR is over "
            "exactly the five published encodings, scores rounded to .005, those not above chance set to chance. reach ÷ L: median "
            "over tasks of the median seed's reach at .9."
        )

    def difference_table(self) -> list[Line]:
        """A line for each pair."""
        order = sorted(self.numbers.differences, key=lambda one: -(one.seeds.value or 0.0))
        return [
            {
                "pair": f"{one.one} − {one.other}",
                "these tasks, other seeds": span(one.seeds, 3),
                "other tasks like these": span(one.tasks, 3) if one.tasks.low is not None else "–",
                "p (Holm)": "–" if one.corrected is None else f"{one.corrected:.3g}",
                "verdict": one.words,
            }
            for one in order[:60]
        ]

    def sensitivity_table(self) -> list[Line]:
        """The order of encodings when one choice is changed; tasks left out are told only where the order moves."""
        shown = [one for one in self.numbers.variants if not one.name.startswith("without ") or one.leader_changed]
        lines = [
            {
                "choice": one.name,
                "tasks": one.tasks,
                "order": " > ".join(" = ".join(group) for group in one.order[:8]) or "nothing to order",
                "": "leader changes" if one.leader_changed else "order changes" if one.changed else "",
            }
            for one in shown[:20]
        ]
        kept = sum(one.name.startswith("without ") and not one.leader_changed for one in self.numbers.variants)
        if kept:
            lines.append(
                {
                    "choice": f"leaving out any one of {kept} other tasks",
                    "tasks": "",
                    "order": "the leader stays",
                    "": "",
                }
            )
        return lines

    def task_table(self, task: str) -> list[Line]:
        """A line for each encoding on one task."""
        here, lines = self.numbers, []
        for name in self.found.encodings:
            if (task, name) not in here.cells:
                continue
            unseen, seen = here.cells[task, name], here.seen[task, name]
            level = f"{100 * unseen.median.level:.4g} %" if unseen.median.level is not None else unseen.median.words
            lines.append(
                {
                    "encoding": name,
                    "seen": "–" if seen.median.value is None else f"{seen.median.value:.3f}",
                    "unseen, median": span(unseen.median, 3),
                    "level": level,
                    "every seed": ", ".join(f"{value:.2f}" for value in unseen.seeds),
                    "test-set noise": "–" if unseen.noise.value is None else f"± {unseen.noise.value:.3f}",
                    "reach at .9": str(here.reach[task, name].median) + _ends(here.reach[task, name]),
                    "at .5": str(here.halfway[task, name].median),
                    "more seeds for ± .05": needed(unseen.seeds).words
                    if len(unseen.seeds) > 1
                    else "at least two are needed",
                }
            )
        return lines

    def published_table(self) -> list[Line]:
        """Ours beside the published mean accuracy at unseen lengths."""
        return [] if self._published is None else self._published(self.found, self.numbers)

    def answers(self, task: str) -> list[Line]:
        """Some wrong answers at the first lengths where each encoding fails, with the right ones."""
        import polars as pl

        if self.found.wrong is None:
            return []
        keys = {item.key: item for item in self.found.items if item.cell.task == task}
        own = self.found.wrong.filter(
            pl.col("run").is_in(list(keys)) & (pl.col("checkpoint") == "last") & (pl.col("split") != "validation")
        ).sort("length", "run", "first")
        shown: dict[str, Line] = {}
        for line in own.iter_rows(named=True):
            name = self.found.names[line["run"]]
            longer = line["length"] > self.found.trained[task][0]
            if longer and name not in shown and len(shown) < ANSWERS:
                words = figures.KINDS.get(line["kind"], (line["kind"], ""))[0]
                texts = {key: _cut(line[key]) for key in ("prompt", "answer", "said")}
                shown[name] = {
                    "encoding": name,
                    "length": line["length"],
                    "seed": keys[line["run"]].cell.seed,
                    "kind": words,
                    **texts,
                }
        return list(shown.values())

    def rates(self) -> list[Line]:
        """The chosen learning rates."""
        return [
            {
                "encoding": one.encoding,
                "chosen on": figures.short(one.group),
                "rate": "waits" if one.rate is None else f"{one.rate:g}",
                "exact match of each": ", ".join(
                    f"{rate:g}: {'missing' if score is None else f'{score[0]:.3f}'}"
                    for rate, score in zip(one.rates, one.scores, strict=True)
                ),
                "": "at the edge" if one.rate is not None and one.edge else "",
            }
            for one in self.found.choices
        ]

    def costs(self) -> list[Line]:
        """Runs, hours, machines, versions."""
        found, records = self.found, self.found.records.values()
        seconds = [one["done"].get("seconds") for one in records]
        known = [value for value in seconds if value is not None]
        recorded = [one["run"].get("recorded", {}) for one in records]

        def all_of(name: str) -> str:
            values = sorted({str(one.get(name)) for one in recorded if one.get(name) is not None})
            return ", ".join(values[:4]) + (", ..." if len(values) > 4 else "") or "not recorded"

        lines = [
            {"what": "runs", "value": f"{len(found.items)} of {found.planned}"},
            {"what": "core hours", "value": f"{sum(known) / 3600:.2f}" if known else "not recorded"},
            {"what": "processor", "value": all_of("cpu")},
            {"what": "threads of a run", "value": all_of("threads")},
            {"what": "lengthwise", "value": all_of("lengthwise")},
            {"what": "commit", "value": all_of("git")},
            {"what": "torch", "value": all_of("torch")},
            {"what": "rows", "value": f"{found.rows.height:,} from {found.source}"},
        ]
        return lines

    # --- figures -----------------------------------------------------------------------------------------------------

    def main(self) -> Drawing:
        """The figure that answers the question: curves of the one task, or the means over tasks."""
        found, here = self.found, self.numbers
        if len(found.tasks) == 1:
            return figures.curves(found, found.tasks[0])
        lines = [
            {
                "encoding": name,
                "value": one.value,
                "low": one.seeds.low,
                "high": one.seeds.high,
                "tasks low": one.tasks.low,
                "tasks high": one.tasks.high,
            }
            for name in self._order()
            if (one := here.means[name]).value is not None
        ]
        alt = "Mean accuracy at unseen lengths: " + "; ".join(
            f"{line['encoding']} {line['value']:.2f}" for line in lines[:12]
        )
        title = "mean accuracy at unseen lengths   (thick: these tasks, other seeds; thin: other tasks like these)"
        return overview.intervals("means", title, alt + ".", lines)

    def overview(self) -> list[Drawing]:
        """The figures that show all tasks at once."""
        found, made = self.found, []
        if len(found.tasks) > 1:
            made = [overview.heat(found), overview.rank_shares(found, self._rank_shares()), overview.reaches(found)]
        elif len(found.encodings) > 1:
            made = [overview.reaches(found)]
        return made

    def _rank_shares(self) -> dict[str, list[float]]:
        """Encoding → share of queries with rank 1, 2, ...; a tie of ranks 1 and 2 counts half for each."""
        here = self.numbers.standing
        many = len(here.encodings)
        found = {}
        for name in here.encodings:
            shares = [0.0] * many
            for rank, count in here.counts.get(name, {}).items():
                low, high = int(rank), min(int(rank + 0.5), many)
                for place in {low, high}:
                    shares[place - 1] += count / here.queries / len({low, high})
            found[name] = shares
        return found

    def drawings(self) -> list[Drawing]:
        """Every figure of the page."""
        found = self.found
        listed = [self.main(), *self.overview()]
        listed += [figures.curves(found, task) for task in found.tasks if len(found.tasks) > 1]
        listed += [figures.anatomy(found, task) for task in found.tasks]
        if (one := figures.training(found)) is not None:
            listed.append(one)
        return listed

    # --- writing -----------------------------------------------------------------------------------------------------

    def html(self) -> str:
        """The page."""
        import jinja2

        source = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
        template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(source)
        found, here = self.found, self.numbers
        made = {drawing.name: drawing for drawing in self.drawings()}
        tasks = [self._task(number, task, made) for number, task in enumerate(found.tasks)]
        main, *rest = self.main(), *self.overview()
        return template.render(
            title=found.study.name,
            study=found.study,
            verdict=self.verdict,
            warnings=self.warnings(),
            main=main,
            overview=rest,
            rank_table=self.rank_table(),
            rank_words=self.rank_words(),
            differences=self.difference_table(),
            difference_words=(
                "Paired by (task, seed). p: sign flips over (task, seed), Holm over the pairs. Settled: the interval "
                "leaves out 0 and so does the test; a single task has an interval, never a p."
            ),
            sensitivity=self.sensitivity_table() if len(found.encodings) > 1 else [],
            tasks=tasks,
            failure_words="All seeds together; the dashed line ends what was trained. " + _told_failures(found),
            training=made.get("training"),
            proof=found.proof.sentence if found.proof is not None else "",
            proof_holds=found.proof is None or found.proof.holds,
            guard=found.guard,
            rates=self.rates(),
            deviations=found.study.deviations,
            protocol=protocol(found),
            published=self.published_table(),
            published_words="Published: Kazemnejad et al. 2023, mean of three seeds of a 110M decoder; sizes, lengths and budgets differ.",
            claims=self._claims,
            claims_words="The rule of each claim was committed before the study was run; lengthwise claims prints both dates.",
            costs=self.costs(),
            command=self._command,
            footer=f"made by lengthwise {__version__}; {len(found.items)} runs, {here.scores.height} scores",
            figure=_figure,
            table=_table,
        )

    def _task(self, number: int, task: str, made: Mapping[str, Drawing]) -> Line:
        trained, unit = self.found.trained[task]
        best = max(
            (name for name in self.found.encodings if (task, name) in self.numbers.cells),
            key=lambda name: self.numbers.cells[task, name].median.value or -1.0,
        )
        learned = "" if task in self.numbers.learned else "; not learned by every encoding"
        curve = figures.curves(self.found, task)
        return {
            "slug": figures.slug(task),
            "short": figures.short(task),
            "line": f"trained up to {trained} {unit}; furthest: {best}{learned}",
            "open": number < OPEN,
            "curve": made.get(curve.name, curve),
            "anatomy": made[f"anatomy-{figures.slug(task)}"],
            "table": self.task_table(task),
            "words": f"{task}. Unseen: lengths {trained + 1} to {2 * trained}; beyond is in no mean.",
            "answers": self.answers(task),
        }

    def write(self, to: str | Path, figures_too: bool = True, pdf: bool = False) -> list[Path]:
        """Write `index.html`, and figures with their data beside it."""
        folder, paths = Folder(to), [Path(to) / "index.html"]
        folder.write("index.html", self.html())
        if figures_too:
            for drawing in self.drawings():
                paths += drawing.write(
                    Path(to) / "figures", ("svg", "pdf") if pdf else ("svg",), ACROSS if pdf else 7.4
                )
        folder.write("report.json", json.dumps(self.plain(), indent=1))
        return [*paths, Path(to) / "report.json"]

    def plain(self) -> Line:
        """The verdict and the tables as data."""
        return {
            "study": self.found.study.name,
            "verdict": self.verdict,
            "warnings": self.warnings(),
            "ranks": self.rank_table(),
            "differences": self.difference_table(),
            "means": {
                name: {"seeds": one.seeds.plain(), "tasks": one.tasks.plain()}
                for name, one in self.numbers.means.items()
            },
            "mrr": {words: one.values for words, one in self.numbers.mrr.items()},
            "tasks": {task: self.task_table(task) for task in self.found.tasks},
        }


def _five(rotary: str) -> dict[str, str]:
    return {"NoPE": "nope", "T5": "t5", "ALiBi": "alibi", "Rotary": rotary, "APE": "sinusoidal"}


def _ends(one: Any) -> str:  # noqa: ANN401
    return "" if one.low is None or one.high is None else f" [{one.low}, {one.high}]"


def _cut(text: str | None) -> str:
    told = text or ""
    return told if len(told) <= _LONG else f"{told[: _LONG - 40]} … {told[-30:]}"


def _told_failures(found: Findings) -> str:
    import polars as pl

    beyond = found.cells.filter(~pl.col("seen"))
    total = {kind: int(beyond[kind].sum()) for kind in figures.KINDS if kind != "correct"}
    wrong = sum(total.values())
    if not wrong:
        return "Nothing failed at unseen lengths."
    parts = [f"{100 * count / wrong:.0f} % {figures.KINDS[kind][0]}" for kind, count in total.items() if count]
    return f"Of what fails at unseen lengths: {', '.join(parts)}."


def _figure(drawing: Drawing) -> Markup:
    """An image with its alternative text; everything is escaped."""
    from markupsafe import Markup

    picture = Markup('<figure><img src="{}" alt="{}" loading="lazy"></figure>')
    return picture.format(drawing.uri(), drawing.alt)


def _table(lines: Sequence[Mapping[str, Any]]) -> Markup:
    """A table that scrolls by itself where the screen is narrow."""
    from markupsafe import Markup, escape

    if not lines:
        return Markup("")
    head = Markup("").join(Markup("<th>{}</th>").format(name) for name in lines[0])
    wide = {name for name in lines[0] if any(len(str(line.get(name, ""))) > 44 for line in lines)}
    rows = Markup("").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(
                Markup('<td class="wrap">{}</td>' if name in wide else "<td>{}</td>").format(
                    escape(str(line.get(name, "")))
                )
                for name in lines[0]
            )
        )
        for line in lines
    )
    return Markup(
        '<div class="scroll" tabindex="0" role="region" aria-label="table"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
    ).format(head, rows)

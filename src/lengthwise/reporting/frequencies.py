"""Which rotary frequencies cost extrapolation: the curve over periods, and verdicts on the predictions.

Predictions, rivals and rules are those of `studies/frequencies.yaml`, which were committed before the study was run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lengthwise.reporting.claims import Rule, StudyResults, Word, decide
from lengthwise.reporting.drawing import Drawing
from lengthwise.reporting.findings import short_task_name
from lengthwise.reporting.palette import FAINT, INK
from lengthwise.reporting.words import format_estimate
from lengthwise.spec import Spec, SpecError
from lengthwise.statistics.estimate import Estimate
from lengthwise.statistics.pairs import mean_over_seed_pairs
from lengthwise.statistics.table import learned_cells

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

ONE_PAIR = 0.125
"""The fraction of a head of 16 that is one pair of coordinates."""
ALL_PAIRS = {
    "rope:theta=1.0": "all pairs, period 6",
    "rope:factor=1000.0:scaling=linear:theta=1.0": "all pairs, period 6283",
}
LEAST = 0.2
"""Where NoPE's own accuracy at unseen lengths is below this, nothing can be lost, and the task does not decide."""
Values = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Task → encoding → seed → mean accuracy at unseen lengths."""


@dataclass(frozen=True)
class Verdict:
    """A prediction or a rival hypothesis, and what the runs say to it."""

    name: str
    statement: str
    word: Word | str
    ours: str


def period_of(encoding: str) -> float | None:
    """Return the period, in tokens, of an encoding in which one pair turns; None for any other."""
    try:
        spec = Spec.of(encoding)
    except SpecError:
        return None
    options = dict(spec.options)
    if spec.name != "rope" or options.pop("fraction", None) != ONE_PAIR:
        return None
    factor = options.pop("factor", 1.0)
    plain = set(options) <= {"scaling"} and options.get("scaling", "linear") == "linear"
    return 2 * math.pi * float(factor) if plain and isinstance(factor, float | int) else None


def frequency_verdicts(frequencies: StudyResults, lengths: StudyResults | None = None) -> list[Verdict]:
    """Judge the predictions P1 to P3 and both rivals; P3 needs the study of other training lengths."""
    values, deciding = _values(frequencies), _deciding(frequencies)
    fast_or_slow = [name for name in _arms(values) if not 7 < _period(name) < 600]
    between = [name for name in _arms(values) if 15 < _period(name) < 25 or 55 < _period(name) < 70]
    within, below, above = Rule(within=[-0.1, 0.1]), Rule(below=0.0), Rule(above=0.1)
    near = [(task, name, _gap(values[task], name, "nope")) for task in deciding for name in fast_or_slow]
    half = [(task, name, _gap(values[task], name, "nope", 0.5)) for task in deciding for name in between]
    turning = [(task, name, _gap(values[task], name, "rope")) for task in deciding for name in ALL_PAIRS]
    angles = [one for one in half if _is_copy_same(one[0]) and 15 < _period(one[1]) < 25]
    return [
        _judged("P1", "Periods of 6 and of 600 and more lie within .1 of NoPE.", within, near),
        _judged("P2", "Periods of 20 and 63 reach at most half of NoPE.", below, half),
        _band(frequencies, lengths),
        _refuted(
            "unseen angles", "Only angles that training did not see do harm: period 20 is harmless.", below, angles
        ),
        _refuted("dose", "Only the number of turning pairs counts: all eight do what full RoPE does.", above, turning),
    ]


def _is_copy_same(task: str) -> bool:
    spec = Spec.of(task)
    return spec.name == "copy" and dict(spec.options).get("variant") == "same"


def _judged(name: str, statement: str, rule: Rule, found: Sequence[tuple[str, str, Estimate]]) -> Verdict:
    if not found:
        return Verdict(name, statement, "not tested here", "no task can decide it")
    return Verdict(name, statement, decide(rule, [one for *_, one in found]), _said(found))


def _refuted(name: str, statement: str, rule: Rule, found: Sequence[tuple[str, str, Estimate]]) -> Verdict:
    """A rival is refuted if one of these estimates satisfies the rule, after Holm's correction."""
    if not found:
        return Verdict(name, statement, "not tested here", "no task can decide it")
    opposite = Rule(above=rule.below) if rule.below is not None else Rule(below=rule.above)
    word = "refuted" if decide(opposite, [one for *_, one in found]) == "does not hold" else "not refuted"
    return Verdict(name, statement, word, _said(found))


def _said(found: Sequence[tuple[str, str, Estimate]]) -> str:
    return "; ".join(
        f"{short_task_name(task)}, {ALL_PAIRS.get(name) or f'period {_period(name):.0f}'}: {format_estimate(one, 2)}"
        for task, name, one in found
    )


def _band(frequencies: StudyResults, lengths: StudyResults | None) -> Verdict:
    """P3: the slope of the centre of the harmful band, in log period, against log L, over seeds."""
    name, statement = "P3", "The harmful band moves in proportion to the training length."
    both = [frequencies] if lengths is None else [frequencies, lengths]
    by_length: dict[int, Mapping[str, Mapping[int, float]]] = {}
    for results in both:
        values = _values(results)
        for task in _deciding(results):
            if _is_copy_same(task):
                by_length[results.findings.trained[task][0]] = values[task]
    if len(by_length) < 3:
        return Verdict(name, statement, "not tested here", f"copy same with {len(by_length)} of 3 training lengths")
    shared = set.intersection(*({arm for arm in own if period_of(arm)} for own in by_length.values()))
    seeds = set.intersection(*(set(own["nope"]) for own in by_length.values()))
    slopes = {}
    for seed in sorted(seeds):
        centres = {length: _centre(own, shared, seed) for length, own in by_length.items()}
        if all(centre is not None for centre in centres.values()):
            slopes[seed, seed] = _slope({math.log(length): centre or 0.0 for length, centre in centres.items()})
    one = mean_over_seed_pairs(slopes, "slope")
    word: Word = "not settled"
    if one.low is not None and one.high is not None:
        if one.low > 0.5 and one.high < 1.5:
            word = "holds"
        elif not one.low <= 1 <= one.high:
            word = "does not hold"
    return Verdict(name, statement, word, f"slope {format_estimate(one, 2)}")


def _centre(values: Mapping[str, Mapping[int, float]], arms: set[str], seed: int) -> float | None:
    """The mean log period, weighted by what each costs; None if none costs anything, or one is missing."""
    if any(seed not in values[arm] for arm in arms):
        return None
    costs = {math.log(_period(arm)): max(values["nope"][seed] - values[arm][seed], 0.0) for arm in arms}
    total = math.fsum(costs.values())
    return math.fsum(place * cost for place, cost in costs.items()) / total if total > 0 else None


def _slope(points: Mapping[float, float]) -> float:
    x, y = math.fsum(points) / len(points), math.fsum(points.values()) / len(points)
    return math.fsum((a - x) * (b - y) for a, b in points.items()) / math.fsum((a - x) ** 2 for a in points)


def _values(here: StudyResults) -> dict[str, dict[str, dict[int, float]]]:
    found: dict[str, dict[str, dict[int, float]]] = {}
    for task, name, seed, value in here.numbers.scores.select("task", "encoding", "seed", "unseen").iter_rows():
        if value is not None:
            found.setdefault(task, {}).setdefault(name, {})[seed] = value
    return found


def _deciding(here: StudyResults) -> list[str]:
    """The tasks that NoPE learned and that leave something to lose."""
    cells = learned_cells(here.numbers.scores).select("task", "encoding", "learned").iter_rows()
    learned = {task for task, name, known in cells if name == "nope" and known}
    means = {task: list(own.get("nope", {}).values()) for task, own in _values(here).items()}
    return [task for task, own in means.items() if task in learned and own and math.fsum(own) / len(own) >= LEAST]


def _arms(values: Values) -> list[str]:
    named = dict.fromkeys(name for own in values.values() for name in own if period_of(name) is not None)
    return sorted(named, key=_period)


def _period(name: str) -> float:
    return period_of(name) or math.nan


def _gap(values: Mapping[str, Mapping[int, float]], one: str, other: str, share: float = 1.0) -> Estimate:
    """The mean over seeds of `one` minus a share of `other`, with its t interval."""
    first, second = values.get(one, {}), values.get(other, {})
    shared = sorted(set(first) & set(second))
    return mean_over_seed_pairs({(seed, seed): first[seed] - share * second[seed] for seed in shared}, "unseen")


def frequency_curve(frequencies: StudyResults, lengths: StudyResults | None = None) -> Drawing:
    """Draw accuracy at unseen lengths against the period of the one pair that turns, in training lengths."""
    import polars as pl

    lines = []
    for results in [frequencies] if lengths is None else [frequencies, lengths]:
        found = results.findings
        for task, own in _values(results).items():
            trained = found.trained[task][0]
            for name, seeds in own.items():
                period = period_of(name)
                for seed, value in seeds.items():
                    line = {"task": f"{short_task_name(task)} {trained}", "encoding": found.label(name), "seed": seed}
                    lines.append({**line, "periods per length": period and period / trained, "unseen": value})
    data = pl.DataFrame(lines, infer_schema_length=None)
    words = "Mean exact match over lengths L+1 to 2L against the period of the only rotating pair, divided by L."
    return Drawing("frequencies", words, data, lambda width: _painted(data, width))


def _painted(data: pl.DataFrame, width: float) -> Figure:
    import matplotlib.pyplot as plt
    import polars as pl

    tasks = data["task"].unique(maintain_order=True).to_list()
    figure, axes = plt.subplots(figsize=(width, 0.5 * width), layout="constrained")
    colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
    x, y = "periods per length", "unseen"
    for colour, task in zip(colours, tasks, strict=False):
        own = data.filter(pl.col("task") == task)
        arms = own.filter(pl.col(x).is_not_null())
        middle = arms.group_by(x).agg(pl.col(y).mean()).sort(x)
        axes.plot(arms[x], arms[y], ".", color=colour, alpha=0.35, markersize=4)
        axes.plot(middle[x], middle[y], "-o", color=colour, markersize=4, label=task)
        for name, style in (("NoPE", "-"), ("RoPE", ":")):
            level = own.filter(pl.col("encoding") == name)[y].mean()
            if level is not None:
                axes.axhline(float(level), color=colour, linestyle=style, linewidth=0.7, alpha=0.6)  # pyrefly: ignore
    axes.set(
        xscale="log", ylim=(-0.03, 1.03), xlabel="period of the rotating pair ÷ L", ylabel="exact match, L+1 to 2L"
    )
    axes.axvline(1, color=FAINT, linewidth=0.6)
    axes.text(1, 1.04, "L", ha="center", fontsize="small", color=FAINT)
    axes.legend(fontsize="small", title="thin: NoPE; dotted: RoPE", title_fontsize="small", labelcolor=INK)
    return figure

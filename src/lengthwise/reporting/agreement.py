"""Our small models beside the published large ones: the same ranks on the same tasks, and whether orders agree."""

from __future__ import annotations

from lengthwise.publication import ENCODINGS, published_encoding, published_task
from lengthwise.publication.accuracy import PER_SEED, UNSEEN
from lengthwise.reporting.findings import Findings
from lengthwise.reporting.numbers import Numbers
from lengthwise.reporting.words import format_estimate, format_number
from lengthwise.statistics.agreement import CLEAR, Agreement, agreement
from lengthwise.statistics.ranks import FIVE, mean_reciprocal_ranks, paper_mean_reciprocal_ranks

Values = dict[str, dict[str, float]]
"""Task → our name of the encoding → mean accuracy at unseen lengths."""


def paired_values(found: Findings, numbers: Numbers) -> tuple[Values, Values]:
    """Return ours and the published values, for the tasks and encodings that both have."""
    ours, published = Values(), Values()
    for task in found.tasks:
        theirs = UNSEEN.get(published_task(task) or "", {})
        for name in (name for name in found.encodings if (task, name) in numbers.cells):
            known = published_encoding(name, found.head_width(task, name))
            value = numbers.cells[task, name].mean.value
            if known in theirs and value is not None:
                ours.setdefault(task, {})[name] = value
                published.setdefault(task, {})[name] = theirs[known]
    return ours, published


def published_ranks(found: Findings, numbers: Numbers) -> list[dict[str, str | int]]:
    """Return the published mean reciprocal ranks, recomputed by both recipes on the task variants of this study."""
    import polars as pl

    ours, _ = paired_values(found, numbers)
    known = dict(zip(FIVE, ENCODINGS, strict=True))
    lines = [
        {"task": task, "encoding": name, "seed": seed, "unseen": value, "micro": value}
        for task in ours
        for name, theirs in known.items()
        for seed, value in enumerate(_published_seeds(published_task(task) or "", theirs))
    ]
    if len(ours) < 2:
        return []
    table, same = pl.DataFrame(lines), {name: name for name in FIVE}
    ranks = {"our recipe": mean_reciprocal_ranks(table, same)}
    ranks["the paper's recipe"] = paper_mean_reciprocal_ranks(table, same)
    return [
        {"recipe": f"published, these {len(ours)} tasks, {words}"}
        | {name: format_number(value) for name, value in one.values.items()}
        | {"queries": one.queries}
        for words, one in ranks.items()
    ]


def _published_seeds(task: str, encoding: str) -> tuple[float, ...]:
    """Each published seed's accuracy; the mean alone, where no seeds are published."""
    return PER_SEED.get(task, {}).get(encoding) or (UNSEEN[task][encoding],)


def order_agreement(found: Findings, numbers: Numbers) -> Agreement:
    """Return whether our scores have the published order."""
    return agreement(*paired_values(found, numbers))


def agreement_sentences(found: Findings, numbers: Numbers) -> list[str]:
    """Say whether these runs predict the published order; nothing for fewer than two tasks."""
    one = order_agreement(found, numbers)
    if len(one.taus) < 2:
        return []
    told = [
        f"Do these runs predict the published order? Kendall's τ-b within a task, averaged over {len(one.taus)} tasks "
        f"with equal weights for families: {format_estimate(one.tau, 2)} (1: the same order, 0: nothing in common)."
    ]
    if one.without_order:
        told.append(f"Left out, since one side has no order: {', '.join(map(found.short, one.without_order))}.")
    told.append(
        f"Of {one.clear_pairs} published pairs of encodings that differ by more than {CLEAR:g} on a task, "
        f"{one.same_sign} have the same sign here."
    )
    if one.pooled is not None and one.by_means is not None:
        told.append(
            f"Pooled over all tasks, Spearman's ρ is {one.pooled:.2f}; our task and encoding means alone, which know "
            f"no order within a task, would give {one.by_means:.2f}."
        )
    return told

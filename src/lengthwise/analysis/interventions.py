"""Three ways to fail beyond the trained lengths, each undone at test time on trained weights.

stop     the end token is forbidden before the true end of the answer, and forced there: is it only when to stop?
entropy  scores, with an encoding's bias, are multiplied by log n / log n(trained) at the n-th token beyond the trained
         ones: is attention spread too thin?
squeeze  positions are multiplied so that the longest sequence ends where the longest trained one did: are positions
         that were never seen to blame? T5's distances are rounded down; for NoPE nothing changes (the control).

Nothing is trained. An intervention that costs more than .02 at seen lengths is not interpreted; these three change
nothing there but the end, by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lengthwise.encoding.base import Encoding
from lengthwise.evaluation.cases import evaluation_cases, splits_and_lengths
from lengthwise.evaluation.result import evaluate_decoder
from lengthwise.model import Decoder
from lengthwise.spec import SpecError
from lengthwise.task.base import Task

if TYPE_CHECKING:
    import polars as pl

CAUSES = ("stop", "entropy", "squeeze")
"""What is undone; also in combination."""
CONDITIONS = tuple(" + ".join(own) for many in range(len(CAUSES) + 1) for own in combinations(CAUSES, many))
"""The empty one first, then each alone, each pair, and all three."""
Row = dict[str, Any]
_POSITIONED = ("checked_embed", "checked_bias", "checked_by_distance", "checked_columns", "prepare")
"""The methods of an encoding that are given positions or distances."""


def _squeezed(positions: Tensor, factor: float) -> Tensor:
    """Return positions times the factor, without the error of fp32: T5 rounds down, and 13 must not become 12."""
    return (positions * factor).round(decimals=4)


@contextmanager
def squeezed_positions(decoder: Decoder, factor: float) -> Iterator[None]:
    """Let every encoding see positions and distances multiplied by `factor`."""
    parts, inside = [part for part in decoder.encodings if isinstance(part, Encoding)], [False]

    def scaled(method: Callable[..., Any], *, first: int = 0) -> Callable[..., Any]:
        """The method with its positions, from its argument `first` on, multiplied; not again if it calls another."""

        def call(*arguments: Any) -> Any:  # noqa: ANN401
            if inside[0]:
                return method(*arguments)
            changed = [
                _squeezed(one, factor) if first <= number < first + 2 else one for number, one in enumerate(arguments)
            ]
            inside[0] = True
            try:
                return method(*changed)
            finally:
                inside[0] = False

        return call

    try:
        for part in parts:  # on these objects alone; which hooks their classes have stays known
            plain = {name: getattr(part, name) for name in _POSITIONED}
            vars(part).update({name: scaled(plain[name], first=int(name == "checked_embed")) for name in _POSITIONED})
        yield
    finally:
        for part in parts:
            for name in _POSITIONED:
                vars(part).pop(name, None)


@torch.no_grad()
def refuse_unsqueezable(decoder: Decoder) -> None:
    """Refuse an encoding that reads positions elsewhere: doubled and then halved, they must be as they were."""
    ids_BT = torch.arange(4, device=next(decoder.parameters()).device)[None] % decoder.config.vocabulary
    positions_BT = torch.arange(4, device=ids_BT.device)[None]
    plain = decoder(ids_BT, positions_BT=positions_BT)
    with squeezed_positions(decoder, 0.5):
        found = decoder(ids_BT, positions_BT=2 * positions_BT)
    if not torch.allclose(found, plain, rtol=1e-3, atol=1e-3 * float(plain.std())):
        name = ", ".join(dict.fromkeys(type(part).__name__ for part in decoder.encodings))
        raise SpecError(f"positions of {name} cannot be squeezed: it reads them while it compares queries and keys")


def intervention_rows(
    plain: Decoder, warmer: Decoder, task: Task, trained_tokens: int, lengths: Sequence[int] | None = None
) -> list[Row]:
    """Return examples and right answers at each length under each condition.

    `warmer` is the same model with the attention temperature `log-n`; `trained_tokens` are those of the longest trained
    sequence.
    """
    refuse_unsqueezable(plain)
    places = [(split, length) for split, length in splits_and_lengths(task, lengths) if split != "test_far"]
    rows = list[Row]()
    for split, length in places:
        longest = max(len(case.ids) - 1 for case in evaluation_cases(task, split, length))
        factor = min(1.0, (trained_tokens - 1) / max(longest - 1, 1))  # the last position becomes the last trained one
        for entropy in (False, True):
            for squeeze in (False, True):
                if squeeze and factor == 1.0:
                    continue  # the same as without
                decoder = warmer if entropy else plain
                with squeezed_positions(decoder, factor if squeeze else 1.0):
                    found = evaluate_decoder(decoder, task, splits=[(split, length)], decoding="none").rows
                told = (("entropy", entropy), ("squeeze", squeeze))
                rows += _counted(found, length, split, [name for name, on in told if on])
    return rows


def _counted(found: pl.DataFrame, length: int, split: str, causes: list[str]) -> list[Row]:
    """Right answers of one pass as they are, and with the end told."""
    mark = {"length": length, "seen": split == "test_seen", "examples": int(found["examples"].sum())}
    own = {"": int(found["correct"].sum())}
    if not found["correct_content"].null_count():  # else the answer cannot be judged without its end
        own["stop"] = int(found["correct_content"].sum())
    return [
        {**mark, "condition": " + ".join([*([stop] if stop else []), *causes]), "correct": right}
        for stop, right in own.items()
    ]

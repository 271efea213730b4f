"""Language models with and without positions: Appendix F of the study, and Haviv et al. before it."""

from __future__ import annotations

from lengthwise.publication import PAPER, Table

HAVIV = "Haviv et al. 2022, arXiv:2203.16634"
_NAMES = ("nope", "learned", "sinusoidal", "alibi")

_HAVIV = {
    "WikiText-103, 247M": (20.97, 20.42, 20.16, 19.71),
    "the Pile, 125M": (22.15, 22.04, 21.49, 19.94),
    "the Pile, 350M": (16.87, 16.84, 16.58, 15.66),
    "the Pile, 760M": (14.29, 14.21, 14.04, 13.53),
    "the Pile, 1.3B": (13.10, 13.05, 12.93, 12.51),
    "the Pile, 1.3B, 256 tokens": (14.98, 14.94, 14.84, 14.65),
    "the Pile, 1.3B, 512 tokens": (13.82, 13.77, 13.66, 13.37),
    "the Pile, 1.3B, 2048 tokens": (12.87, 12.72, 12.62, 12.06),
    "masked, RoBERTa-large": (147.18, 4.06, 4.07, 4.00),
}
PERPLEXITY: dict[str, dict[str, float]] = {
    name: dict(zip(_NAMES, values, strict=True)) for name, values in _HAVIV.items()
}
"""Setting → encoding → perplexity (Haviv et al.)."""
CONTEXT: dict[int, dict[str, float]] = {
    1024: {"nope": 2.666, "alibi": 2.735, "rope:fraction=0.25:interleaved=true": 2.607},
    1400: {"nope": 2.504, "alibi": 2.741, "rope:fraction=0.25:interleaved=true": 156.3},
    1800: {"nope": 41.2, "alibi": 13.8, "rope:fraction=0.25:interleaved=true": 674.5},
    2560: {"nope": 536, "alibi": 150, "rope:fraction=0.25:interleaved=true": 760},
}
"""Context → encoding → perplexity of models of 1.3B trained on 1,024 tokens (Kazemnejad et al., Appendix F)."""


def tables() -> list[Table]:
    """Perplexities of both publications."""
    haviv: list[dict[str, object]] = [{"setting": name, **values} for name, values in PERPLEXITY.items()]
    context: list[dict[str, object]] = [{"context": length, **values} for length, values in CONTEXT.items()]
    return [
        Table(
            "context",
            "Models of 1.3B parameters trained on 1,024 tokens of code, given more context",
            "perplexity of the last 200 tokens at most; documents of 2,750 to 3,000 tokens",
            f"{PAPER}, Appendix F, Tables 3-4",
            context,
            ("One run of each.", "T5's bias and APE were not trained at this size."),
        ),
        Table(
            "haviv",
            "Language models without positions",
            "perplexity",
            HAVIV,
            haviv,
            (
                "One run of each; seeds of WikiText-103 differ by up to .9 elsewhere (Press et al.).",
                "The Pile is 1,024 tokens where no length is given.",
            ),
        ),
    ]

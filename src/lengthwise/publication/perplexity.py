"""Language models with and without positions: Appendix F of the study, and Haviv et al. before it."""

from __future__ import annotations

from lengthwise.publication import PAPER, Table, read_published_csv

HAVIV = "Haviv et al. 2022, arXiv:2203.16634"


def _numbers(name: str, key: str) -> dict[str, dict[str, float]]:
    return {
        line.pop(key): {column: float(value) for column, value in line.items()} for line in read_published_csv(name)
    }


PERPLEXITY = _numbers("perplexity", "setting")
"""Setting → encoding → perplexity (Haviv et al.)."""
CONTEXT = {int(length): values for length, values in _numbers("perplexity_by_context", "context").items()}
"""Context → encoding → perplexity of models of 1.3B trained on 1,024 tokens (Kazemnejad et al., Appendix F)."""


def tables() -> list[Table]:
    """Return the perplexities of both publications."""
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

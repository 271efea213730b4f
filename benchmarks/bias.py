"""Where ALiBi's two fast forms cross: a matrix of biases, or one extra column of queries and keys.

    python benchmarks/bias.py --rounds 15 --layers 3

Forward and backward of `fused_attention`, with the making of the context, which the layers of a model share: once per
`--layers` calls. Both forms take turns on one thread; what counts is the median over rounds of their ratio. It decides
`attention.COLUMNS_FROM`. The last line of the output is one line of JSON.

Legend of shape suffixes: B batch, T tokens, H heads, E head width.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from unittest.mock import patch

import torch
from machine import cpu
from rich.console import Console
from rich.table import Table
from torch import Tensor

from lengthwise.encoding import build_encoding
from lengthwise.encoding.base import Encoding
from lengthwise.model import DecoderConfig, attention, preset
from lengthwise.model.layout import lay_out
from lengthwise.normaliser.softmax import Softmax

FORMS = {"columns": 0, "matrix": sys.maxsize}
"""Each form with the `COLUMNS_FROM` that leads to it."""
TOKENS = 4096
"""Tokens in a batch, whatever their arrangement."""
HEADS = ((4, 16), (8, 64))
LENGTHS = (64, 128, 256, 384, 512, 1024, 2048)


class Case:
    """Queries, keys and values of one shape, laid out in memory as `Attention` hands them over."""

    def __init__(self, heads: int, head_width: int, tokens: int, layers: int) -> None:
        self.config: DecoderConfig = preset(
            "modern", vocabulary=128, width=heads * head_width, heads=heads, head_width=head_width
        )
        self.encoding: Encoding = build_encoding("alibi", self.config.geometry)
        self.batch, self.tokens, self.layers = max(1, TOKENS // tokens), tokens, layers
        generator = torch.Generator().manual_seed(0)
        shape = (self.batch, tokens, heads, head_width)
        q_BHTE, k_BHTE, v_BHTE, self.gradient_BHTE = (
            torch.randn(shape, generator=generator).transpose(1, 2) for _ in range(4)
        )
        self.qkv = tuple(part.requires_grad_() for part in (q_BHTE, k_BHTE, v_BHTE))

    def once(self) -> tuple[Tensor, ...]:
        """One context as `Decoder.forward` makes it, then each layer forward and backward."""
        device = self.gradient_BHTE.device
        layout = lay_out(self.batch, self.tokens, device)
        attention_mask = attention.AttentionMask(self.config.mask, layout, layout)
        budget_B = torch.tensor(layout.counts, device=device)
        context = attention.AttentionContext(
            self.encoding, self.config, attention_mask, torch.float32, budget_B, Softmax(self.config.geometry)
        )
        q_BHTE, k_BHTE, v_BHTE = self.qkv
        outs = [attention.fused_attention(q_BHTE, k_BHTE, v_BHTE, context) for _ in range(self.layers)]
        gradients: tuple[Tensor, ...] = ()
        for out_BHTE in outs:
            gradients = torch.autograd.grad(out_BHTE, self.qkv, self.gradient_BHTE)
        return outs[-1].detach(), *gradients

    def timed(self, form: str) -> float:
        """Seconds in one form, per layer."""
        with patch.object(attention, "COLUMNS_FROM", FORMS[form]):
            start = time.perf_counter()
            self.once()
            return (time.perf_counter() - start) / self.layers

    def check(self) -> None:
        """Both forms must give the same: a form that is wrong is no cheaper."""
        results = []
        for form in FORMS.values():
            with patch.object(attention, "COLUMNS_FROM", form):
                results.append(self.once())
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


def measure(case: Case, rounds: int) -> dict[str, list[float]]:
    """Seconds of each form in each round; who goes first alternates."""
    case.check()
    seconds: dict[str, list[float]] = {form: [] for form in FORMS}
    gc.disable()  # else the collector's time falls on whoever allocates last
    for turn in range(rounds):
        gc.collect()
        for form in list(FORMS)[:: 1 if turn % 2 else -1]:
            seconds[form].append(case.timed(form))
    gc.enable()
    return seconds


def main() -> None:
    """Parse the options, measure each shape, print a table and the JSON line."""
    parser = argparse.ArgumentParser(description="columns against a matrix of biases, by sequence length")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each form at each shape")
    parser.add_argument("--layers", type=int, default=3, help="calls that share a context, as the layers of a model do")
    options = parser.parse_args()
    if options.rounds < 1 or options.layers < 1:
        parser.error("--rounds and --layers are at least 1")

    torch.set_num_threads(1)
    shipped = attention.COLUMNS_FROM
    table = Table(title=f"alibi, {TOKENS} tokens, forward and backward per layer, {options.layers} layers per context")
    for heading in ("H", "E", "T", "B", "matrix ms", "columns ms", "columns / matrix", "shipped choice"):
        table.add_column(heading, justify="right")
    ratios = []
    for heads, head_width in HEADS:
        for tokens in LENGTHS:
            print(f"\rheads {heads} × {head_width}, {tokens} tokens   ", end="", file=sys.stderr, flush=True)
            case = Case(heads, head_width, tokens, options.layers)
            seconds = measure(case, options.rounds)
            pairs = zip(seconds["columns"], seconds["matrix"], strict=True)
            ratio = statistics.median(columns / matrix for columns, matrix in pairs)
            matrix, columns = (1000 * statistics.median(seconds[form]) for form in ("matrix", "columns"))
            choice = "matrix" if tokens * tokens <= shipped else "columns"
            shape = (str(number) for number in (heads, head_width, tokens, case.batch))
            table.add_row(*shape, f"{matrix:.2f}", f"{columns:.2f}", f"{ratio:.3f}", choice)
            ratios.append({"H": heads, "E": head_width, "T": tokens, "columns_to_matrix": round(ratio, 4)})
    print(file=sys.stderr)
    Console().print(table)
    record = {"benchmark": "bias", "torch": torch.__version__, "threads": torch.get_num_threads(), "cpu": cpu()}
    print(json.dumps({**record, "layers": options.layers, "columns_from": shipped, "ratios": ratios}))


if __name__ == "__main__":
    main()

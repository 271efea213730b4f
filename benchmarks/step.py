"""Time of one training step: our decoder, a bare one written by hand, and the decoders people would use instead.

    python benchmarks/step.py --rounds 30 --sizes 64,256,512 --only ours,peers

Every contestant gets the same ids, targets, loss and optimizer, on one thread. They take turns within each round, and
what counts is the median over rounds of the ratio to the bare decoder in the same round: a machine that is busy for a
while slows both. The last line of the output is one line of JSON.

Legend of shape suffixes: B batch, T tokens, H heads, E head width, D model width, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from machine import cpu
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from lengthwise.model import Decoder, DecoderConfig, preset

VOCABULARY = 128
OURS = ("nope", "rope", "alibi", "t5", "sinusoidal", "learned")
WARM_UP = 2


@dataclass(frozen=True)
class Size:
    """One size of model and batch; all widths here are multiples of the head width."""

    width: int
    layers: int
    tokens: int
    batch: int
    share: int
    """The rounds are divided by it: a larger size is slower and less noisy."""
    steps: int
    """Steps in a row per turn, of which the median counts: the first finds another's data in the processor's caches."""

    @property
    def head_width(self) -> int:
        return 16 if self.width == 64 else 64

    @property
    def heads(self) -> int:
        return self.width // self.head_width

    @property
    def feed_forward_width(self) -> int:
        """Three matrices as large as the usual two of 4 · width, in whole vectors of the processor."""
        return math.ceil(8 / 3 * self.width / 32) * 32

    @property
    def config(self) -> DecoderConfig:
        """The shape in our words; the other contestants are built to match it."""
        return preset(
            "modern",
            vocabulary=VOCABULARY,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            head_width=self.head_width,
            feed_forward_width=self.feed_forward_width,
        )


SIZES = (
    Size(width=64, layers=3, tokens=24, batch=64, share=1, steps=5),
    Size(width=256, layers=4, tokens=64, batch=32, share=3, steps=1),
    Size(width=512, layers=6, tokens=128, batch=8, share=3, steps=1),
)


class BareLayer(nn.Module):
    """Pre-norm attention and SwiGLU, and nothing else."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.heads = config.heads
        width, inner, wide = config.width, config.heads * config.head_width, config.feed_forward_width
        self.attention_norm = nn.RMSNorm(width, eps=config.norm_epsilon)
        self.q = nn.Linear(width, inner, bias=False)
        self.k = nn.Linear(width, inner, bias=False)
        self.v = nn.Linear(width, inner, bias=False)
        self.out = nn.Linear(inner, width, bias=False)
        self.feed_forward_norm = nn.RMSNorm(width, eps=config.norm_epsilon)
        self.gate = nn.Linear(width, wide, bias=False)
        self.up = nn.Linear(width, wide, bias=False)
        self.down = nn.Linear(wide, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        batch, tokens, _ = x_BTD.shape
        h_BTD = self.attention_norm(x_BTD)
        q_BHTE = self.q(h_BTD).view(batch, tokens, self.heads, -1).transpose(1, 2)
        k_BHTE = self.k(h_BTD).view(batch, tokens, self.heads, -1).transpose(1, 2)
        v_BHTE = self.v(h_BTD).view(batch, tokens, self.heads, -1).transpose(1, 2)
        heads_BHTE = F.scaled_dot_product_attention(q_BHTE, k_BHTE, v_BHTE, is_causal=True)
        x_BTD = x_BTD + self.out(heads_BHTE.transpose(1, 2).reshape(batch, tokens, -1))
        h_BTD = self.feed_forward_norm(x_BTD)
        return x_BTD + self.down(F.silu(self.gate(h_BTD)) * self.up(h_BTD))


class Bare(nn.Module):
    """What a good engineer writes when there is one encoding, NoPE, and no option: the yardstick."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.Sequential(*(BareLayer(config) for _ in range(config.layers)))
        self.norm = nn.RMSNorm(config.width, eps=config.norm_epsilon)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, ids_BT: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(self.embedding(ids_BT))))


def bare_like(decoder: Decoder, ids_BT: Tensor) -> Bare:
    """A bare decoder with the weights of ours, and a check that both compute the same: else the ratio means nothing."""
    bare = Bare(decoder.config)
    weights = {
        name.replace(".attention.", ".").replace(".feed_forward.", "."): weight
        for name, weight in decoder.state_dict().items()
    }
    bare.load_state_dict(weights)
    with torch.no_grad():
        difference = float((bare(ids_BT) - decoder(ids_BT)).abs().max())
    if not difference <= 1e-4:
        raise AssertionError(f"the bare decoder's logits differ from ours by {difference:g}, so it is no yardstick")
    return bare


class Contestant:
    """A model with its optimizer: `step` is what is timed."""

    def __init__(self, name: str, model: nn.Module, logits: Callable[[Tensor], Tensor]) -> None:
        self.name = name
        self.logits = logits
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step(self, ids_BT: Tensor, targets_N: Tensor) -> float:
        """Seconds of one step: forward, loss, backward, update."""
        start = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.logits(ids_BT).view(-1, VOCABULARY), targets_N)
        loss.backward()
        self.optimizer.step()
        return time.perf_counter() - start


def ours(size: Size) -> list[Contestant]:
    """Our decoder under each encoding."""
    decoders = {name: Decoder(size.config, name) for name in OURS}
    return [Contestant(name, decoder, decoder) for name, decoder in decoders.items()]


def peers(size: Size) -> list[Contestant]:
    """The decoders people would use instead, each as near to our shape as its options go."""
    try:
        import transformers
        import x_transformers
    except ImportError as error:
        sys.exit(
            f"{error}. Peers need: pip install 'transformers>=5' x-transformers; or leave them out with --only ours"
        )
    transformers.logging.set_verbosity_error()
    wide = size.feed_forward_width
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=size.width,
            intermediate_size=wide,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            max_position_embeddings=size.tokens,
            tie_word_embeddings=False,
            use_cache=False,
        )
    )
    gpt2 = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=size.tokens,
            n_embd=size.width,
            n_layer=size.layers,
            n_head=size.heads,
            n_inner=3 * wide // 2,  # two matrices of the size of our three
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            tie_word_embeddings=False,
            use_cache=False,
        )
    )
    x_transformer = x_transformers.TransformerWrapper(
        num_tokens=VOCABULARY,
        max_seq_len=size.tokens,
        use_abs_pos_emb=False,
        attn_layers=x_transformers.Decoder(
            dim=size.width,
            depth=size.layers,
            heads=size.heads,
            attn_dim_head=size.head_width,
            attn_flash=True,
            use_rmsnorm=True,
            ff_mult=wide / size.width,
            ff_glu=True,
            ff_swish=True,
            ff_no_bias=True,
            verbose=False,
        ),
    )
    for model in (llama, gpt2):
        model.set_attn_implementation("sdpa")
    return [
        Contestant("llama", llama.train(), lambda ids_BT: llama(input_ids=ids_BT).logits),
        Contestant("gpt2", gpt2.train(), lambda ids_BT: gpt2(input_ids=ids_BT).logits),
        Contestant("x-transformers", x_transformer.train(), x_transformer),
    ]


def measure(contestants: list[Contestant], size: Size, rounds: int, ids_BT: Tensor) -> dict[str, list[float]]:
    """Seconds per step of each contestant in each round; each round begins with the next contestant."""
    targets_N = torch.randint(VOCABULARY, (ids_BT.numel(),), generator=torch.Generator().manual_seed(1))
    for contestant in contestants:
        for _ in range(WARM_UP):
            contestant.step(ids_BT, targets_N)
    seconds: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    gc.disable()  # else the collector's time falls on whoever allocates last
    for turn in range(rounds):
        print(f"\rwidth {size.width}: round {turn + 1} of {rounds}", end="", file=sys.stderr, flush=True)
        gc.collect()
        first = turn % len(contestants)
        for contestant in contestants[first:] + contestants[:first]:
            took = [contestant.step(ids_BT, targets_N) for _ in range(size.steps)]
            seconds[contestant.name].append(statistics.median(took))
    gc.enable()
    print(file=sys.stderr)
    return seconds


def run(size: Size, rounds: int, groups: set[str], console: Console) -> dict[str, object]:
    """Measure one size, print its table, and return its part of the JSON line."""
    torch.manual_seed(0)
    ids_BT = torch.randint(VOCABULARY, (size.batch, size.tokens))
    bare = bare_like(Decoder(size.config, "nope"), ids_BT)
    contestants = [Contestant("bare", bare, bare)]
    if "ours" in groups:
        contestants += ours(size)
    if "peers" in groups:
        contestants += peers(size)
    seconds = measure(contestants, size, rounds, ids_BT)

    title = f"width {size.width}, {size.layers} layers, {size.tokens} × {size.batch} tokens, {rounds} rounds"
    table = Table("contestant", title=title, title_justify="left")
    for heading in ("ms", "ratio to bare", "quartiles", "parameters"):
        table.add_column(heading, justify="right")
    medians: dict[str, float] = {}
    for contestant in contestants:
        mine, name = seconds[contestant.name], contestant.name
        low, middle, high = quartiles([a / b for a, b in zip(mine, seconds["bare"], strict=True)])
        if name != "bare":
            medians[name] = round(middle, 4)
        milliseconds = 1000 * statistics.median(mine)
        table.add_row(
            name, f"{milliseconds:.2f}", f"{middle:.3f}", f"{low:.3f}–{high:.3f}", f"{contestant.parameters:,}"
        )
    console.print(table)
    return {
        "width": size.width,
        "layers": size.layers,
        "tokens": size.tokens,
        "batch": size.batch,
        "rounds": rounds,
        "bare_ms": round(1000 * statistics.median(seconds["bare"]), 3),
        "ratio_to_bare": medians,
    }


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """The three quartiles; of a single round, that round."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def main() -> None:
    """Parse the options, measure each size, print tables and the JSON line."""
    parser = argparse.ArgumentParser(description="time of one training step, as a ratio to a bare PyTorch decoder")
    parser.add_argument(
        "--rounds", type=int, default=30, help="rounds at width 64; a third, at least 7, at larger ones"
    )
    parser.add_argument("--sizes", default=",".join(str(size.width) for size in SIZES), help="widths, e.g. 64,256")
    parser.add_argument("--only", default="ours,peers", help="ours, peers, or both; bare is always there")
    options = parser.parse_args()
    widths, groups = options.sizes.split(","), set(options.only.split(","))
    if unknown := set(widths) - {str(size.width) for size in SIZES}:
        parser.error(f"--sizes knows {', '.join(str(size.width) for size in SIZES)}, not {', '.join(sorted(unknown))}")
    if unknown := groups - {"ours", "peers"}:
        parser.error(f"--only knows ours and peers, not {', '.join(sorted(unknown))}")
    if options.rounds < 1:
        parser.error("--rounds is at least 1")

    torch.set_num_threads(1)
    console = Console()
    results = []
    for size in SIZES:
        if str(size.width) in widths:
            rounds = options.rounds if size.share == 1 else max(7, options.rounds // size.share)
            results.append(run(size, rounds, groups, console))
    record = {"benchmark": "step", "torch": torch.__version__, "threads": torch.get_num_threads(), "cpu": cpu()}
    print(json.dumps({**record, "sizes": results}))


if __name__ == "__main__":
    main()

"""Examples per second of our evaluation against `transformers`' `generate` on a Llama of the same size.

    python benchmarks/decode.py [--task copy:variant=same] [--examples 128] [--rounds 5]

The Llama has our weights' shapes (width, layers, heads, feed-forward, vocabulary), and both answer the same prompts,
in batches of 64, padded on the left. Random weights stop at random, so every answer runs to its limit: the work is the
same. *real* is our batched, cached decoding of every answer; *checked* is what an evaluation does: one pass, a decoded
sample, failures decoded on. Interleaved, one thread, medians; ratios above 1 mean that ours is quicker.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from lengthwise.encodings.positions import Consecutive
from lengthwise.evaluation.cases import Case, cases
from lengthwise.evaluation.decoding import decoder_decode
from lengthwise.evaluation.examination import examine
from lengthwise.model import Decoder
from lengthwise.run import Plan

BATCH = 64


def llama_of(plan: Plan) -> LlamaForCausalLM:
    """A Llama of the same size."""
    config = plan.model
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocabulary,
            hidden_size=config.width,
            intermediate_size=config.feed_forward_width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            head_dim=config.head_width,
            max_position_embeddings=4096,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    ).eval()


@torch.no_grad()
def generate(llama: LlamaForCausalLM, asked: list[Case]) -> None:
    """All answers by `generate`, greedily, in batches of like lengths."""
    order = sorted(asked, key=lambda case: case.prompt)
    for start in range(0, len(order), BATCH):
        group = order[start : start + BATCH]
        wide = max(case.prompt for case in group)
        ids = torch.zeros(len(group), wide, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, case in enumerate(group):
            ids[row, wide - case.prompt :] = torch.tensor(case.ids[: case.prompt])
            mask[row, wide - case.prompt :] = 1
        most = max(case.limit for case in group)
        config = GenerationConfig(max_new_tokens=most, do_sample=False, eos_token_id=2, pad_token_id=0)
        llama.generate(ids, attention_mask=mask, generation_config=config)


def never_stops(decoder: Decoder, llama: LlamaForCausalLM) -> None:
    """Take the end token away from both, so that every answer runs to its limit."""
    with torch.no_grad():
        for head in (decoder.head, llama.lm_head):
            assert head is not None
            head.weight[2] = 0.0
            head.weight.sub_(head.weight.mean(0, keepdim=True))
            head.weight[2] = -10 * head.weight.abs().max()


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="copy:variant=random")
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    plan = Plan.of(options.task, "rope")
    task, decoder, llama = plan.task, plan.decoder().eval(), llama_of(plan)
    never_stops(decoder, llama)
    places = [("test_unseen", length) for length in range(task.longest + 1, 2 * task.longest + 1)]
    asked = [case for split, length in places for case in cases(task, split, length, options.examples)]
    decode = decoder_decode(decoder, Consecutive(), task.vocabulary.eos, BATCH)
    ways: dict[str, Callable[[], object]] = {
        "generate": lambda: generate(llama, asked),
        "real": lambda: decode(asked, [[]] * len(asked)),
        "checked": lambda: examine(decoder, task, splits=places, examples=options.examples, rows=BATCH),
    }
    timed: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(options.rounds + 1):
        for name in list(ways) if turn % 2 else list(ways)[::-1]:
            start = time.perf_counter()
            ways[name]()
            if turn:  # the first warms up
                timed[name].append(time.perf_counter() - start)
    told = {}
    print(f"{options.task}, {len(asked)} answers of {asked[0].limit} to {asked[-1].limit} tokens, batches of {BATCH}")
    for name, seconds in timed.items():
        ratio = statistics.median(a / b for a, b in zip(timed["generate"], seconds, strict=True))
        speed = len(asked) / statistics.median(seconds)
        print(f"{name:<10}{speed:>10.1f} answers/s{ratio:>8.2f} x generate")
        told[name] = {"per_second": round(speed, 1), "ratio": round(ratio, 3)}
    print(json.dumps(told))


if __name__ == "__main__":
    main()

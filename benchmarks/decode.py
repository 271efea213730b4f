"""Answers per second of our evaluation against `transformers`' `generate` on a Llama of the same size.

    python benchmarks/decode.py [--task copy:variant=same] [--steps 1500] [--examples 256] [--rounds 5]

Our model is trained for a while, so that right and wrong answers both occur, and evaluated at every tested length:
*evaluation* is what `lengthwise evaluate` does (one pass, a decoded sample, failures decoded), *real* decodes every
answer from its prompt to its own end or limit. *generate* answers the same prompts greedily with its cache, in batches
of as many rows, sorted by length, padded on the left, for as many tokens as the longest answer that our model gives to
a prompt of the batch: the work of giving the same answers. Interleaved, one thread, medians; above 1, ours is quicker.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from lengthwise.encoding.positions import Consecutive
from lengthwise.evaluation.cases import Case, evaluation_cases, splits_and_lengths
from lengthwise.evaluation.decoding import decoder_decode_function
from lengthwise.evaluation.result import evaluate_decoder
from lengthwise.model import Decoder
from lengthwise.run import Plan
from lengthwise.task.block import training_block
from lengthwise.training.batches import on_demand_blocks
from lengthwise.training.loop import Loop


def trained(plan: Plan) -> Decoder:
    """Our model, after its few steps."""
    decoder = plan.decoder()
    supply = on_demand_blocks(lambda start, stop: training_block(plan.task, start, stop, plan.seeds.data))
    for _ in Loop(decoder, supply, plan.training, plan.positions, plan.seeds):
        pass
    return decoder.eval()


def llama_of(plan: Plan) -> LlamaForCausalLM:
    """A Llama of the same size."""
    config = plan.model
    llama = LlamaForCausalLM(
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
    )
    llama.eval()
    return llama


@torch.no_grad()
def generate(llama: LlamaForCausalLM, asked: list[Case], said: list[int], batch: int) -> None:
    """All answers by `generate`, each of about as many tokens as ours."""
    order = sorted(range(len(asked)), key=lambda number: (asked[number].prompt, said[number]))
    for start in range(0, len(order), batch):
        numbers = order[start : start + batch]
        group = [asked[number] for number in numbers]
        wide = max(case.prompt for case in group)
        ids = torch.zeros(len(group), wide, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, case in enumerate(group):
            ids[row, wide - case.prompt :] = torch.tensor(case.ids[: case.prompt])
            mask[row, wide - case.prompt :] = 1
        most = max(said[number] for number in numbers)
        config = GenerationConfig(max_new_tokens=most, min_new_tokens=most, do_sample=False, pad_token_id=0)
        config.eos_token_id = None
        llama.generate(ids, attention_mask=mask, generation_config=config)  # pyrefly: ignore


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="copy:variant=same")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    plan = Plan.of(options.task, "rope", training=f"laptop:steps={options.steps}")
    task, decoder, llama = plan.task, trained(plan), llama_of(plan)
    asked = [
        case
        for split, length in splits_and_lengths(task)
        for case in evaluation_cases(task, split, length, options.examples)
    ]
    decode = decoder_decode_function(decoder, Consecutive(), task.vocabulary.eos, options.batch)
    said = [len(words) for words in decode(asked, [[]] * len(asked))]
    ways: dict[str, Callable[[], object]] = {
        "generate": lambda: generate(llama, asked, said, options.batch),
        "real": lambda: decode(asked, [[]] * len(asked)),
        "evaluation": lambda: evaluate_decoder(
            decoder, task, examples=options.examples, decoding_batch_rows=options.batch
        ),
    }
    timed: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(options.rounds + 1):
        for name in list(ways) if turn % 2 else list(ways)[::-1]:
            start = time.perf_counter()
            ways[name]()
            if turn:  # the first warms up
                timed[name].append(time.perf_counter() - start)
    judged = evaluate_decoder(decoder, task, examples=options.examples).judged
    right = sum(one.kind == "right" for one in judged) / len(judged)
    told: dict[str, object] = {"right": round(right, 3)}
    print(f"{plan.task_spec}, {len(asked)} answers, {right:.0%} of ours right, batches of {options.batch}")
    for name, seconds in timed.items():
        ratio = statistics.median(a / b for a, b in zip(timed["generate"], seconds, strict=True))
        speed = len(asked) / statistics.median(seconds)
        print(f"{name:<12}{speed:>8.1f} answers/s{ratio:>8.2f} x generate")
        told[name] = {"per_second": round(speed, 1), "ratio": round(ratio, 3)}
    print(json.dumps(told))


if __name__ == "__main__":
    main()

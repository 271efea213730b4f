"""What `1.3B-code` needs on 8, 16 and 64 accelerators, counted; and what the counting is worth at sizes timed here.

python benchmarks/scale.py            the tables of docs/reference/scale.md
python benchmarks/scale.py --timed CORPUS    steps of four sizes on this machine: seconds by FLOPs
"""

from __future__ import annotations

import sys

from lengthwise.model.config import preset
from lengthwise.spec import Spec
from lengthwise.study.counting import Workload, decoder_cost_model
from lengthwise.study.machines import ACCELERATORS
from lengthwise.training.settings import training_preset

CONTEXT, RANKS = 1024, (8, 16, 64)
NODE = 8
"""Accelerators of a node."""
BETWEEN, WITHIN = 50e9, 450e9
"""Bytes per second that an accelerator sends between nodes (400 Gbit/s) and within one (NVLink)."""


def shapes() -> list[tuple[int, ...]]:
    """The shapes of all parameters, without making them."""
    import torch

    from lengthwise.model import Decoder

    with torch.device("meta"):
        made = Decoder(preset("1.3B-code", vocabulary=49_152), "nope")
    return [tuple(parameter.shape) for parameter in made.parameters()]


def main() -> None:
    """Print memory, speed and hours for each number of accelerators."""
    from lengthwise.training.parallel import parameters_of_first_rank

    config, training = preset("1.3B-code", vocabulary=49_152), training_preset("code")
    model, sizes = decoder_cost_model(config, (Spec("nope"),)), shapes()
    tokens = training.batch_size * CONTEXT
    step = Workload(1, tokens, tokens * CONTEXT, tokens)
    flops = model.flops(step, training=True)
    attention = 4 * config.width * config.heads * config.head_width
    layer = 4 * (attention + 2 * config.width * config.feed_forward_width)
    print(f"{model.parameters:,} parameters; {flops / tokens / 1e9:.2f} GFLOP a token; {flops:.3g} FLOP a step")
    print("| accelerators | rows each | parameters each | weights, gradients, moments | activations | recomputed |")
    print("|---|---|---|---|---|---|")
    for ranks in RANKS:
        held, rows = parameters_of_first_rank(sizes, ranks), training.batch_size // ranks
        kept = model.activation_bytes(rows * CONTEXT, rows * CONTEXT**2, rows * CONTEXT) / 2  # bf16
        logits = 4 * 3 * rows * CONTEXT * config.vocabulary / 2
        recomputed = 2 * rows * CONTEXT * config.width * config.layers + (kept - logits) / config.layers + logits
        gathered = 2 * layer
        print(
            f"| {ranks} | {rows} | {held:,} | {16 * held / 2**30:.1f} GiB | "
            f"{(kept + gathered) / 2**30:.0f} GiB | {(recomputed + gathered) / 2**30:.0f} GiB |"
        )
    print()
    print("| accelerators | kind | computing | exchanging | tokens a second | hours for 30 B tokens |")
    print("|---|---|---|---|---|---|")
    for name in ("a100", "h100"):
        device = ACCELERATORS[name]
        for ranks in RANKS:
            seconds = flops / ranks / (device.bf16 * device.utilisation) + device.call + config.layers * device.layer
            # Weights are gathered twice in bf16, and gradients summed in fp32: 8 bytes a parameter.
            sent = 8 * model.parameters * (ranks - 1) / ranks / (WITHIN if ranks <= NODE else BETWEEN)
            whole = max(seconds, sent)
            print(
                f"| {ranks} | {name} | {seconds:.2f} s | {sent:.2f} s | {tokens / whole:,.0f} | "
                f"{training.steps * whole / 3600:.0f} |"
            )


def timed(corpus: str) -> None:
    """Print what a FLOP costs on this machine at four sizes of one architecture."""
    from lengthwise.run import Plan
    from lengthwise.study.machines import ThisMachine

    machine = ThisMachine()
    for layers, width in ((2, 64), (4, 128), (4, 256), (4, 512)):
        sizes = f"nano:layers={layers}:width={width}:heads=4:head_width={width // 4}:feed_forward_width={3 * width}"
        plan = Plan.of(f"text:path={corpus}:longest=128", "nope", model=sizes, training="nano:batch_size=8")
        price = machine.seconds_per_flop(plan)
        print(f"{layers} layers of width {width}: {1e-9 / price:.1f} GFLOP/s")


if __name__ == "__main__":
    timed(sys.argv[2]) if sys.argv[1:2] == ["--timed"] else main()

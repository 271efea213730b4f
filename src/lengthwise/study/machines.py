"""Machines for cost estimates: a CPU by measured prices, or an accelerator by its published peaks."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from lengthwise.spec import Spec, SpecError, did_you_mean
from lengthwise.study.counting import Body, Workload

if TYPE_CHECKING:
    from lengthwise.task.block import Block
    from lengthwise.training.loop import Loop

Amounts = Mapping[str, float]


@dataclass(frozen=True)
class Machine:
    """A CPU with prices measured by `calibrate`: seconds per unit of each counted amount."""

    cpu: str
    threads: int
    step: Amounts
    """Prices of a training step: calls, layers, FLOPs by width, scores by path, turned, dropped, logits, weights."""
    look: Amounts
    """Prices of a forward pass and of decoding; `said` is per decoded token, `case` all other work per example."""
    save: Amounts
    """Prices of a checkpoint: per call and per byte."""
    base: int
    """Bytes of an idle process that has imported everything a run imports."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Machine:
        """Return the machine that `record` wrote."""
        if missing := {field.name for field in fields(cls)} ^ set(record):
            raise SpecError(f"this is no record of a calibrated machine: {', '.join(sorted(missing))}; calibrate again")
        return cls(**record)

    def record(self) -> dict[str, Any]:
        """Return the machine as plain data for JSON."""
        return asdict(self)

    def stepping(self, amounts: Amounts, flops: float, autocast: bool) -> float:
        """Seconds of training steps."""
        return _priced(amounts, self.step, autocast)

    def looking(self, amounts: Amounts, flops: float, cases: float) -> float:
        """Seconds of forward passes and of processing their answers."""
        return _priced(amounts, self.look) + cases * self.look["case"]

    def saving(self, calls: float, size: float) -> float:
        """Seconds of writing checkpoints."""
        return calls * self.save["calls"] + size * self.save["bytes"]


@dataclass(frozen=True)
class Accelerator:
    """A device by its published peaks (dense FLOP/s) and assumptions; nothing was measured."""

    name: str
    bf16: float
    """Peak under `autocast`; the fp32 peak if the device has no bf16."""
    fp32: float
    """Peak without tf32, which PyTorch does not use by default."""
    bytes: int
    utilisation: float = 0.4
    """Share of the peak that large matrix products reach."""
    call: float = 3e-3
    """Fixed seconds of a step outside its layers; it keeps small steps far below the peak."""
    layer: float = 1e-3
    """Seconds of kernel launches per layer, forward and backward."""
    base: int = 500 * 2**20
    case: float = 2e-4
    """Host seconds per evaluated example."""

    def stepping(self, amounts: Amounts, flops: float, autocast: bool) -> float:
        """Seconds of training steps."""
        peak = self.bf16 if autocast else self.fp32
        return amounts["calls"] * self.call + amounts["layers"] * self.layer + flops / (peak * self.utilisation)

    def looking(self, amounts: Amounts, flops: float, cases: float) -> float:
        """Seconds of forward passes, which launch a third of a step's kernels; evaluation runs in fp32."""
        launches = (amounts["calls"] * self.call + amounts["layers"] * self.layer) / 3
        return launches + flops / (self.fp32 * self.utilisation) + cases * self.case

    def saving(self, calls: float, size: float) -> float:
        """Seconds of writing checkpoints, at 500 MB/s."""
        return calls * 5e-3 + size / 5e8


ACCELERATORS = {
    "a100": Accelerator("NVIDIA A100 SXM 80 GB", 312e12, 19.5e12, 80 * 2**30),
    "h100": Accelerator("NVIDIA H100 SXM 80 GB", 989e12, 67e12, 80 * 2**30),
    "l4": Accelerator("NVIDIA L4", 121e12, 30.3e12, 24 * 2**30),
    "rtx4090": Accelerator("NVIDIA RTX 4090", 165e12, 82.6e12, 24 * 2**30),
    "t4": Accelerator("NVIDIA T4", 8.1e12, 8.1e12, 16 * 2**30),
    "v100": Accelerator("NVIDIA V100 SXM2 32 GB", 15.7e12, 15.7e12, 32 * 2**30),
}


def accelerator(name: str) -> Accelerator:
    """Return the accelerator of this name."""
    if name not in ACCELERATORS:
        raise SpecError(f"unknown accelerator {name!r}.{did_you_mean(name, ACCELERATORS)}")
    return ACCELERATORS[name]


def _priced(amounts: Amounts, prices: Amounts, autocast: bool = False) -> float:
    names = {name: f"bf16 {name}" if autocast and name.startswith("linear") else name for name in amounts}
    return sum(amount * prices.get(names[name], 0.0) for name, amount in amounts.items())


# --- calibration -----------------------------------------------------------------------------------------------------

_STEPS = [
    # encoding, model, layers, rows, tokens, autocast
    *(("nope", "64", layers, 4, 8, False) for layers in (1, 3)),
    *(("nope", "64", layers, 64, 16, False) for layers in (1, 3)),
    *((encoding, "64", 2, 64, 32, False) for encoding in ("nope", "alibi", "t5", "rope", "cope")),
    *((encoding, "64", 2, 16, 128, False) for encoding in ("nope", "alibi", "t5", "cope")),
    *(("nope", "64:dropout=0.1:attention_dropout=0.1", 2, 64, 32, False), ("nope", "64", 2, 64, 32, True)),
    ("nope", "64:vocabulary=1024", 2, 64, 32, False),
    *(("nope", "256", 1, 4, 8, False), ("nope", "256", 2, 32, 32, False), ("nope", "256", 1, 16, 32, True)),
    *(("nope", "768", 1, 4, 8, False), ("nope", "768", 1, 16, 32, False), ("nope", "768", 1, 16, 32, True)),
]
_MODELS = {
    "64": "laptop",
    "256": "laptop:width=256:heads=4:head_width=64:feed_forward_width=768",
    "768": "modern",
}
_LOOKS = [
    # encoding, model, layers, rows, tokens; with 1 token, decoding
    *(("nope", "64", 1, 256, 32), ("nope", "64", 3, 256, 32), ("nope", "64", 2, 64, 128)),
    *(("alibi", "64", 2, 256, 32), ("alibi", "64", 2, 64, 128), ("rope", "64", 2, 256, 32)),
    *(("cope", "64", 2, 64, 32), ("cope", "64", 2, 16, 128), ("cope", "64", 2, 64, 1)),
    *(("nope", "64", 1, 16, 1), ("nope", "64", 3, 16, 1), ("nope", "64", 3, 256, 1)),
    *(("nope", "64:vocabulary=1024", 2, 256, 32), ("nope", "256", 1, 64, 32), ("nope", "256", 1, 128, 1)),
    *(("nope", "768", 1, 16, 32), ("nope", "768", 1, 32, 1)),
]
_VOCABULARY, _SAID = 256, 16
PROBES = f"{_STEPS} {_LOOKS}"
"""The timed probes as text, part of the cache key: changed probes make a cached calibration invalid."""
_BASE = (
    "import torch, lengthwise.run, polars, safetensors.torch;"
    "torch.optim.AdamW([torch.zeros(1, requires_grad=True)]);"  # imports a good deal more
    "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
)


def calibrate(threads: int = 1, progress: Callable[[str], None] | None = None, seconds: float = 9.0) -> Machine:
    """Time the real training loop, decoder and evaluation for about `seconds`, and fit the price of each amount."""
    import torch

    from lengthwise.run.machine import cpu_name

    if threads < 1:
        raise SpecError(f"a run has at least one thread, not {threads}")
    tell, before = progress or (lambda _: None), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        tell("timing training steps")
        loops: dict[tuple[object, ...], Loop] = {}
        step = _fitted([_stepping(loops, *probe) for probe in _STEPS], 0.5 * seconds)
        tell("timing passes and decoding")
        look = _fitted([_looking(loops, *probe) for probe in _LOOKS], 0.2 * seconds)
        tell("timing an examination and checkpoints")
        look["case"] = _case(look)
        save = _saving(loops[("nope", "64", 1)], loops[("nope", "768", 1)])
    finally:
        torch.set_num_threads(before)
    tell("measuring an idle process")
    return Machine(cpu_name(), threads, step, look, save, _base())


Probe = tuple[dict[str, float], Callable[[], object]]
"""The counted amounts of a probe, and a function that does it once."""


def _fitted(probes: list[Probe], seconds: float) -> dict[str, float]:
    """Fit nonnegative prices to the mean timings by least squares of relative errors; probes are timed in turn.

    Means, not medians: other processes on the machine slow down real runs too.
    """
    import numpy as np
    from scipy.optimize import nnls

    timed: list[list[float]] = [[] for _ in probes]
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or len(timed[0]) < 3:
        for (_, once), times in zip(probes, timed, strict=True):
            if not times:
                once()  # warm-up: the first call allocates memory and selects kernels
            start = time.perf_counter()
            once()
            times.append(time.perf_counter() - start)
    names = list(dict.fromkeys(name for amounts, _ in probes for name in amounts))
    counts = np.array([[amounts.get(name, 0.0) for name in names] for amounts, _ in probes])
    counts /= np.array([statistics.fmean(times) for times in timed])[:, None]
    scale = counts.max(0)
    scale[scale == 0] = 1
    return dict(zip(names, (nnls(counts / scale, np.ones(len(probes)))[0] / scale).tolist(), strict=True))


def _loop(loops: dict[tuple[object, ...], Loop], encoding: str, model: str, layers: int, autocast: bool) -> Loop:
    from lengthwise.encoding.positions import Consecutive
    from lengthwise.model import Decoder, preset
    from lengthwise.training.loop import Loop
    from lengthwise.training.settings import Seeds, training_preset

    key = (encoding, model, layers, autocast) if autocast else (encoding, model, layers)
    if key not in loops:
        width, _, rest = model.partition(":")
        spec = Spec.of(f"{_MODELS[width]}:{rest}" if rest else _MODELS[width])
        config = preset(spec, **{"vocabulary": _VOCABULARY, **dict(spec.options), "layers": layers})
        training = training_preset("laptop", autocast=autocast)
        loops[key] = Loop(Decoder(config, encoding), _nothing, training, Consecutive(), Seeds.of(0))
    return loops[key]


def _nothing(start: int, stop: int) -> Block:
    raise AssertionError("probes bring their own batches")


def _stepping(
    loops: dict[tuple[object, ...], Loop], encoding: str, model: str, layers: int, rows: int, tokens: int, short: bool
) -> Probe:
    import numpy as np
    import torch

    from lengthwise.training.batches import Batch

    loop = _loop(loops, encoding, model, layers, short)
    ids_BT = torch.randint(1, _VOCABULARY, (rows, tokens + 1), generator=torch.Generator().manual_seed(0))
    loss_BT = (torch.arange(tokens + 1) > tokens // 2).expand(rows, -1)
    feed = Batch(ids_BT, np.full(rows, tokens + 1), loss_BT, None, np.full(rows, tokens))
    shape = Workload(1, rows * tokens, rows * tokens**2, float(loss_BT.sum()))
    amounts, _ = Body.of(loop.decoder.config, (Spec(encoding),)).amounts(shape, training=True)
    if short:
        amounts = {f"bf16 {name}" if name.startswith("linear") else name: count for name, count in amounts.items()}
    return amounts, lambda: loop.advance(feed)


def _looking(
    loops: dict[tuple[object, ...], Loop], encoding: str, model: str, layers: int, rows: int, tokens: int
) -> Probe:
    import torch

    from lengthwise.encoding.positions import Consecutive
    from lengthwise.evaluation.cases import Case
    from lengthwise.evaluation.decoding import decoder_decode

    decoder = _loop(loops, encoding, model, layers, False).decoder
    ids_BT = torch.randint(1, _VOCABULARY, (rows, max(tokens, 2)), generator=torch.Generator().manual_seed(0))
    only_BT = (torch.arange(tokens) >= tokens // 2).expand(rows, -1)
    cases = [Case("test_far", 1, row, None, ids, 2, _SAID, 0) for row, ids in enumerate(ids_BT.tolist())]
    say = decoder_decode(decoder, Consecutive(), end=-1)  # no token ends an answer, so all are decoded to their limit

    @torch.no_grad()
    def look() -> None:
        decoder.eval()
        decoder(ids_BT, lengths=[tokens] * rows, only_BT=only_BT)

    def decode() -> None:
        decoder.eval()
        say(cases, [[]] * rows)

    shape = Workload(1, rows * tokens, rows * tokens**2, float(only_BT.sum()))
    if tokens == 1:
        shape = Workload(_SAID, rows * (_SAID + 1), rows * _SAID**2 / 2, rows * _SAID, rows * _SAID)
    amounts, _ = Body.of(decoder.config, (Spec(encoding),)).amounts(shape, training=False)
    return amounts, look if tokens > 1 else decode


def _case(look: dict[str, float]) -> float:
    """Return the seconds of an evaluation per example, without the forward passes."""
    from lengthwise.evaluation.result import evaluate_decoder
    from lengthwise.model import Decoder, preset
    from lengthwise.study.counting import one_pass, tested_by
    from lengthwise.task import build_task

    task = build_task("copy:variant=same:longest=16")
    decoder = Decoder(preset("laptop", vocabulary=len(task.vocabulary)), "nope")
    splits, times = [("validation", length) for length in (8, 10, 12, 14)], []
    for _ in range(4):
        start = time.perf_counter()
        evaluate_decoder(decoder, task, splits=splits, examples=64, decoding="none")
        times.append(time.perf_counter() - start)
    lengths = [one for one in tested_by(Spec.of("copy:variant=same:longest=16")) if one.split == "validated"]
    shape, cases = one_pass(lengths[-9::2][:4], 64)
    amounts, _ = Body.of(decoder.config, (Spec("nope"),)).amounts(shape, training=False)
    return max(0.0, (statistics.median(times[1:]) - _priced(amounts, look)) / cases)


def _saving(small: Loop, large: Loop) -> dict[str, float]:
    from lengthwise.folder import Folder
    from lengthwise.training.checkpoint import save

    found = []
    for loop in (small, large):
        times, tensors = [], loop.tensors()
        with tempfile.TemporaryDirectory() as there:
            for number in range(4):
                start = time.perf_counter()
                save(Folder(there), number, tensors, {})
                times.append(time.perf_counter() - start)
        found.append((sum(part.nbytes for part in tensors.values()), statistics.median(times)))
    (little, quick), (much, slow) = found
    price = max(0.0, slow - quick) / (much - little)
    return {"calls": max(0.0, quick - price * little), "bytes": price}


def _base() -> int:
    """Return the peak bytes of a fresh process that has imported what a run imports."""
    try:
        done = subprocess.run([sys.executable, "-c", _BASE], capture_output=True, text=True, check=True, timeout=60)
        return 1024 * int(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return 250 * 2**20  # e.g. on systems without /proc

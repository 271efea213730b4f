"""Small models that are trained here with plain transformers and torch, because no pretrained one can be fetched.

`python -m tests.foreign.trained FOLDER` writes FOLDER/bytes, a Llama that has read the sources of Python's standard
library byte by byte, and FOLDER/recall, a Llama that copies and recalls in the format of `foreign/prompts.py`. Each
folder has safetensors, a configuration and a tokenizer, and `training.json` says what was learned.
"""

from __future__ import annotations

import json
import math
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lengthwise.foreign.few_shot import few_shot
from lengthwise.foreign.prompts import ARROW, LINE_END, solved_line
from lengthwise.task import build_task
from lengthwise.task.base import Task
from lengthwise.task.sets import instances

SHAPE: dict[str, Any] = {
    **{"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 4},
    **{"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "tie_word_embeddings": False},
}
CONTEXT = 256
"""The context of the byte-level model."""
BYTES, END = 256, "<|end|>"
"""The number of bytes, whose ids they are themselves, and the token between files."""
Batch = Callable[[torch.Generator], tuple[Tensor, Tensor]]
"""A generator → ids (B, T) and labels (B, T); labels of −100 are not trained on."""


def train(
    model: LlamaForCausalLM, batch: Batch, steps: int, rate: float, seed: int, enough: float = 0.0
) -> list[float]:
    """Train with AdamW, a warm-up of a twentieth and a cosine to a tenth; return the loss of each step.

    It ends early if the mean loss of 100 steps is below `enough`.
    """
    generator, losses = torch.Generator().manual_seed(seed), list[float]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    warm = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda at: min(1.0, (at + 1) / warm) * (0.55 + 0.45 * math.cos(math.pi * at / steps))
    )
    model.train()
    started = time.monotonic()
    for step in range(steps):
        ids_BT, labels_BT = batch(generator)
        loss = model(ids_BT, labels=labels_BT, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 50 == 49:
            print(f"step {step + 1}: loss {sum(losses[-50:]) / 50:.4f}, {time.monotonic() - started:.0f} s", flush=True)
        if step % 100 == 99 and sum(losses[-100:]) / 100 < enough:
            break
    model.eval()
    return losses


def built(
    vocabulary: int, layers: int, context: int, end: int, start: int | None, seed: int, **shape: object
) -> LlamaForCausalLM:
    """A Llama with random weights."""
    torch.manual_seed(seed)
    options: dict[str, Any] = {**SHAPE, **shape, "bos_token_id": start, "eos_token_id": end, "pad_token_id": None}
    options |= {"vocab_size": vocabulary, "num_hidden_layers": layers, "max_position_embeddings": context}
    return LlamaForCausalLM(LlamaConfig(**options))


def saved(folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, facts: dict[str, Any]) -> None:
    """Write weights, configuration and tokenizer, and what is known of the training."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    parameters = sum(one.numel() for one in model.parameters())
    (folder / "training.json").write_text(json.dumps({"parameters": parameters, **facts}, indent=1) + "\n")


# --- bytes -----------------------------------------------------------------------------------------------------------


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer in which the id of a byte is the byte; it adds no token by itself."""
    tokenizer = Tokenizer(models.BPE(vocab=_byte_symbols(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, clean_up_tokenization_spaces=False)


def _byte_symbols() -> dict[str, int]:
    """The characters by which the library stands for bytes: printable ones for themselves, others from 256 on."""
    own = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(BYTES) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(BYTES + at): byte for at, byte in enumerate(others)}


def python_sources() -> tuple[list[Path], list[Path]]:
    """The files of the standard library, without its tests: those that are trained on, and every 20th, held out."""
    root = Path(sysconfig.get_path("stdlib"))
    found = sorted((*root.glob("*.py"), *root.glob("[a-z]*/*.py")), key=lambda path: str(path.relative_to(root)))
    found = [path for path in found if not {"test", "tests", "site-packages", "lib2to3"} & set(path.parts)]
    return [path for at, path in enumerate(found) if at % 20], found[::20]


def as_ids(files: list[Path]) -> Tensor:
    """The bytes of files, each ended by the end token."""
    return torch.cat([torch.tensor([*path.read_bytes(), BYTES], dtype=torch.int16) for path in files])


@torch.no_grad()
def held_out_bits(model: LlamaForCausalLM, ids_N: Tensor, rows: int = 64, context: int = CONTEXT) -> float:
    """Bits per byte on `rows` windows of held-out files."""
    starts = torch.linspace(0, len(ids_N) - context - 1, rows).long()
    ids_BT = torch.stack([ids_N[start : start + context] for start in starts]).long()
    return model(ids_BT, labels=ids_BT, use_cache=False).loss.item() / math.log(2)


def train_bytes(
    folder: Path, steps: int = 1000, layers: int = 4, rows: int = 8, context: int = CONTEXT, seed: int = 0
) -> dict[str, Any]:
    """Train the byte-level Llama, write it to `folder` and return what is known of it."""
    trained, held_out = (as_ids(files) for files in python_sources())

    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(trained) - context, (rows,), generator=generator)
        ids_BT = torch.stack([trained[start : start + context] for start in starts]).long()
        return ids_BT, ids_BT

    model = built(BYTES + 1, layers, context, BYTES, None, seed)
    losses = train(model, batch, steps, 3e-3, seed)
    facts = {
        **{"python": sys.version.split()[0], "bytes": len(trained), "steps": steps, "context": context},
        "trained_bits_per_byte": sum(losses[-50:]) / len(losses[-50:]) / math.log(2),
        "held_out_bits_per_byte": held_out_bits(model, held_out, context=context),
    }
    saved(folder, model, byte_tokenizer(), facts)
    return facts


# --- copy and recall -------------------------------------------------------------------------------------------------

TASKS = ("copy:alphabet=26:longest=8", "recall:queries=1:keys=16:values=8:longest=4")
"""What the few-shot model learns, in documents of solved examples of one task."""
LINES = 5
"""The most solved examples in a document: four shots and the question."""
PHASES = (((1,), 1, 128, 3500), ((1,), LINES, 48, 1500), ((0, 1), LINES, 48, 2500))
"""What is trained one after the other: which tasks, lines up to, documents in a batch, steps.

Recall is learned from single lines first. From documents of five lines, or together with copying, it stayed at a guess.
"""
SMALL: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 192, "initializer_range": 0.07}
"""The width and the initial scale with which our own decoder learns recall; with 128 and .02 this Llama did not."""
ENOUGH = 0.015
"""A phase ends when the mean loss of 100 steps is below this."""
PAD, START, STOP = "<pad>", "<bos>", "<eos>"


def word_tokenizer(*tasks: str) -> PreTrainedTokenizerFast:
    """A tokenizer with a token for each symbol, one for each symbol with the arrow after it, and one for a line's end.

    It adds one for the start. A key and the arrow are one token, so that its answer follows the key.
    """
    words = [symbol for name in tasks for symbol in build_task(name).symbols]
    asked = [f"{word}{ARROW}" for word in words]
    symbols = dict.fromkeys((PAD, START, STOP, LINE_END, *words, *asked))
    tokenizer = Tokenizer(models.WordLevel({symbol: number for number, symbol in enumerate(symbols)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(LINE_END, "isolated"), pre_tokenizers.Split(Regex(f" (?!{ARROW.strip()})"), "removed")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{START} $A", special_tokens=[(START, 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=START, eos_token=STOP, pad_token=PAD)


def train_recall(
    folder: Path, phases: Sequence[tuple[Sequence[int], int, int, int]] = PHASES, layers: int = 2, seed: int = 0
) -> dict[str, Any]:
    """Train the Llama on recalls, then on copies too, write it to `folder` and return what is known of it."""
    tokenizer, tasks = word_tokenizer(*TASKS), [build_task(name) for name in TASKS]
    model = built(len(tokenizer), layers, CONTEXT, 2, 1, seed, **SMALL)
    draw = Documents(tokenizer, seed)
    facts: dict[str, Any] = {"steps": [], "loss": []}
    for chosen, lines, rows, steps in phases:
        losses = train(model, draw.batches([tasks[one] for one in chosen], lines, rows), steps, 2e-3, seed, ENOUGH)
        facts["steps"].append(len(losses))
        facts["loss"].append(sum(losses[-100:]) / len(losses[-100:]))
    for name, task in zip(TASKS, tasks, strict=True):
        lengths = [1, 2, 3, 4, 6, 8] if task.longest == 4 else [1, 2, 4, 8, 10, 12, 16]
        facts[name] = few_shot(model, tokenizer, task, lengths).accuracy
    saved(folder, model, tokenizer, facts)
    return facts


class Documents:
    """Documents of solved examples of one task; no example is drawn twice, and targets are answers and line ends."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self.tokenizer, self.seed, self.drawn = tokenizer, seed, 0
        vocabulary = tokenizer.get_vocab()
        self.line_end = vocabulary[LINE_END]
        self.asks_V = torch.tensor([word.endswith(ARROW) for word in sorted(vocabulary, key=vocabulary.__getitem__)])

    def batches(self, tasks: list[Task], lines: int, rows: int) -> Batch:
        """Batches of `rows` documents, each with 1 to `lines` examples."""

        def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
            documents = []
            for row in range(rows):
                task, count = tasks[row % len(tasks)], int(torch.randint(1, lines + 1, (), generator=generator))
                lengths = torch.randint(1, task.longest + 1, (count,), generator=generator).tolist()
                made = instances(task, "train", lengths, range(self.drawn, self.drawn + count), self.seed + 1)
                documents.append("".join(solved_line(task, instance) for instance in made))
                self.drawn += count
            ids = self.tokenizer(documents).input_ids
            ids_BT = torch.zeros(rows, max(map(len, ids)), dtype=torch.long)  # 0 is the id of padding
            for row, own in enumerate(ids):
                ids_BT[row, : len(own)] = torch.tensor(own)
            ends_BT, asks_BT = (ids_BT == self.line_end).long(), self.asks_V[ids_BT].long()
            # An answer is what follows an arrow, up to the end of its line.
            answers_BT = asks_BT.cumsum(1) - asks_BT - ends_BT.cumsum(1) + ends_BT > 0
            return ids_BT, ids_BT.masked_fill(~answers_BT, -100)

        return batch


if __name__ == "__main__":
    torch.set_num_threads(1)
    where = Path(sys.argv[1])
    for name, make in {"bytes": train_bytes, "recall": train_recall}.items():
        if not sys.argv[2:] or name in sys.argv[2:]:
            print(name, make(where / name), flush=True)

"""A run as a Hugging Face folder: weights, config with the end token, tokenizer, so that `generate` stops by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from lengthwise.encoding.positions import Consecutive
from lengthwise.hf import LengthwiseForCausalLM
from lengthwise.hf.guards import record_checksums
from lengthwise.spec import SpecError
from lengthwise.task.text import Text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lengthwise.model import Decoder
    from lengthwise.task.base import Task


def export_model(decoder: Decoder, task: Task, positions: object, to: str | Path) -> str:
    """Write a folder that `from_pretrained` reads, model and tokenizer; returns a prompt to try it with."""
    if not isinstance(positions, Consecutive):
        raise SpecError(
            f"the run has {type(positions).__name__.lower()} positions, and generate counts 0, 1, 2, ...; only runs "
            "with consecutive positions can be exported"
        )
    if decoder.uses_budget:
        raise SpecError(
            "the run's frequencies depend on the number of tokens that a sequence may get, and generate allows another "
            "number than the run did, so the model would answer differently; only a scaling with a fixed factor, e.g. "
            "rope:scaling=yarn:factor=4:trained=64, can be exported"
        )
    tokenizer = tokenizer_of(task)
    ends = {
        "bos_token_id": task.vocabulary.bos,
        "eos_token_id": task.vocabulary.eos,
        "pad_token_id": task.vocabulary.pad,
    }
    model = LengthwiseForCausalLM.from_decoder(decoder)
    model.config.update(ends)
    assert model.generation_config is not None
    model.generation_config.update(**ends, max_new_tokens=task.answer_limit(2 * task.longest))
    model.save_pretrained(to)
    tokenizer.save_pretrained(to)
    record_checksums(to, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
    if isinstance(task, Text):
        return "The"
    return " ".join(task.to_example(task.longest_answer_instance(task.longest)).prompt)


def tokenizer_of(task: Task) -> PreTrainedTokenizerBase:
    """The task's word-level vocabulary as a fast tokenizer; symbols are separated by spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
    vocabulary = task.vocabulary
    if isinstance(task, Text):
        made = Tokenizer.from_str(task.vocabulary.tokenizer.data.decode())
        start = task.vocabulary.symbols[task.vocabulary.bos]
        made.post_processor = processors.TemplateProcessing(  # pyrefly: ignore[read-only]
            single=f"{start} $A", special_tokens=[(start, task.vocabulary.bos)]
        )
        return PreTrainedTokenizerFast(tokenizer_object=made, padding_side="left", **dict.fromkeys(names, start))
    if task.hf_tokenizer is not None:
        return PreTrainedTokenizerFast(tokenizer_file=str(Path(task.tokenizer or "") / "tokenizer.json"))
    made = Tokenizer(models.WordLevel({symbol: number for number, symbol in enumerate(vocabulary.symbols)}))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyrefly: ignore[read-only]
    if task.starts:
        start = f"{names['bos_token']} $A"
        made.post_processor = processors.TemplateProcessing(  # pyrefly: ignore[read-only]
            single=start, special_tokens=[(names["bos_token"], vocabulary.bos)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=made, padding_side="left", **names)


def loading_code(folder: str | Path, prompt: str) -> str:
    """The lines that load the folder and ask it something."""
    return "\n".join(
        [
            "import lengthwise.hf  # first: it tells transformers what this model is",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            f"model = AutoModelForCausalLM.from_pretrained({json.dumps(str(folder))})",
            f"tokenizer = AutoTokenizer.from_pretrained({json.dumps(str(folder))})",
            f"ids = tokenizer({json.dumps(prompt)}, return_tensors='pt')",
            "print(tokenizer.decode(model.generate(**ids)[0]))",
        ]
    )

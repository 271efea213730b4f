"""`measure` and `doctor`: what do the positions of somebody else's model really do, and is its code right?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.progress import Say, progress
from lengthwise.run.lease import STORE
from lengthwise.spec import SpecError, one_line

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from lengthwise.foreign.measurement import Diagnosis, Measurement
    from lengthwise.foreign.reach import Reach
    from lengthwise.run.run import Run

    Model = str | Path | PreTrainedConfig | nn.Module


def measure(
    model: Model,
    *,
    lengths: Sequence[int] | str | None = None,
    text: str | Path | None = None,
    changes: Sequence[str] = (),
    task: str | None = None,
    shots: int = 4,
    tokenizer: PreTrainedTokenizerBase | None = None,
    attention: str | None = None,
    flex: bool = False,
    to: str | Path | None = None,
) -> Measurement:
    """Say what positions do in each layer of a causal language model, whether its code is right, and how far it works.

    `model` is the folder of a Hugging Face model with safetensors, a name in the local cache, a configuration (random
    weights), or a model in memory. Nothing is downloaded, and no code of the folder is run. How far it works is
    measured if `lengths` are given (contexts in tokens): on `text`, or on Python's own library; and with `changes` at
    test time, such as `yarn:factor=4`, on the same tokens. `task` is one of ours, which the model is asked to do with
    `shots` solved examples in the prompt. `attention` is `eager` or `sdpa`, what the model has by default unless given;
    `flex` compares FlexAttention too. `to` is a folder for a page with figures.

    >>> from transformers import LlamaConfig
    >>> sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    >>> found = measure(LlamaConfig(vocab_size=50, **sizes))
    >>> [layer.name for layer in found.layers]
    ['rope', 'rope']
    """
    from lengthwise.evaluation.cases import parse_lengths
    from lengthwise.foreign.changes import checked_change
    from lengthwise.task import build_task

    contexts = parse_lengths(lengths) if isinstance(lengths, str) else lengths
    for change in changes:  # mistakes are said before a model is loaded
        checked_change(change)
    if task is not None:
        build_task(task)
    if isinstance(text, Path) and not text.is_file():
        raise SpecError(f"there is no text {text}")
    if contexts is None and (changes or text is not None):
        raise SpecError("give the contexts at which it is measured too, e.g. --lengths 256..4096:x2")
    loaded = _loaded(model, attention)
    with _unchanged(loaded), progress() as say:
        words = _tokenizer(model, tokenizer, required=contexts is not None or task is not None)
        found = _checked(loaded, flex, say, words)
        if contexts is not None and words is not None:
            found = _with_reach(found, loaded, words, text, contexts, changes, say)
        if task is not None and words is not None:
            from lengthwise.foreign.few_shot import few_shot

            found = replace(found, few_shot=few_shot(loaded, words, task, shots=shots, on_progress=say))
    name = Path(model).name if isinstance(model, str | Path) else type(loaded).__name__
    return found if to is None else _written(found, name, Path(to))


def measure_run(run: Run | str, *, lengths: Sequence[int] | str | None = None, store: str = STORE) -> Reach:
    """Measure how far a language model that was trained here works, on test documents of its corpus.

    Perplexity, copy, induction and retrieval at the same contexts, loss by position and by segment, the loss after a
    shuffled prefix, and perplexity by length of the document. `lengths` are contexts in tokens, those of the task
    unless given.

    >>> import lengthwise as lw
    >>> run = lw.train("text:path=corpus:longest=16", "rope", model="nano:layers=1", steps=2, quiet=True)
    >>> print(measure_run(run, lengths=[16, 32]))
    """
    from lengthwise.evaluation.cases import parse_lengths
    from lengthwise.evaluation.decoding import position_limit
    from lengthwise.foreign.texts import measure_text_model
    from lengthwise.run.run import Run
    from lengthwise.task.text import Text

    opened = Run.of(run, store)
    task, decoder = opened.task, opened.decoder()
    if not isinstance(task, Text) or task.objective != "causal":
        raise SpecError(f"run {opened.id} is no causal language model; lengthwise evaluate tests it")
    contexts = parse_lengths(lengths) if isinstance(lengths, str) else lengths or task.contexts
    limit = position_limit(decoder)
    with progress() as say:
        return measure_text_model(decoder, task, [one for one in contexts if limit is None or one <= limit], say)


def _with_reach(
    found: Measurement,
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    text: str | Path | None,
    lengths: Sequence[int],
    changes: Sequence[str],
    say: Say,
) -> Measurement:
    from lengthwise.foreign.changes import compare_changes
    from lengthwise.foreign.reach import measure_reach

    ids_T, usable = _tokens(tokenizer, text)
    trained = _trained_length(model) or max(lengths)
    how = {"trained_length": trained, "usable_ids": usable, "say": say}
    found = replace(found, reach=measure_reach(model, ids_T, lengths, **how))
    return replace(found, changes=compare_changes(model, ids_T, lengths, changes, **how)) if changes else found


def doctor(
    model: Model, *, against: Model | None = None, attention: str | None = None, flex: bool = False
) -> Diagnosis:
    """Say whether it is the model or the code around it that fails.

    With `against`, a second implementation with the same weights, it names the first layer, quantity and position at
    which the two differ.

    >>> from transformers import GPT2Config
    >>> doctor(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)).healthy
    True
    """
    from lengthwise.foreign.doctor import first_difference
    from lengthwise.foreign.measurement import Diagnosis
    from lengthwise.foreign.requested import differing_settings

    loaded = _loaded(model, attention)
    with _unchanged(loaded), progress() as say:
        found = _checked(loaded, flex, say, _tokenizer(model, None, required=False))
        if against is None:
            return Diagnosis(found)
        reference = _loaded(against, attention)
        say("comparing with the reference, layer by layer")
        with _unchanged(reference):
            return Diagnosis(found, True, first_difference(loaded, reference), differing_settings(loaded, reference))


def _written(found: Measurement, name: str, to: Path) -> Measurement:
    """Write a measurement as a page with figures, its rows and report.json into a folder."""
    import json

    from lengthwise.folder import Folder
    from lengthwise.reporting.foreign_models import change_drawing, reach_drawing
    from lengthwise.reporting.page import parts_page

    folder, drawings = Folder(to), []
    if found.reach is not None:
        drawings.append(reach_drawing(found.reach.rows, found.reach.trained_length))
    if found.changes is not None:
        drawings.append(change_drawing(found.changes.rows, found.changes.trained_length))
    for drawing in drawings:
        drawing.write(to / "figures")
    folder.write("report.json", json.dumps(found.plain(), indent=1, allow_nan=False, default=str))
    if found.few_shot is not None:
        from lengthwise.evaluation.rows import frame_to_parquet

        folder.write("rows.parquet", frame_to_parquet(found.few_shot.rows))
    folder.write("index.html", parts_page(f"{name}: what do its positions really do?", found.sections(), drawings))
    return replace(found, page=to / "index.html")


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and leave its modules and rotary buffers as they were."""
    from lengthwise.foreign.changes import restored
    from lengthwise.foreign.losses import in_eval_mode

    with in_eval_mode(model), restored(model):
        yield


def _checked(model: nn.Module, flex: bool, say: Say, tokenizer: PreTrainedTokenizerBase | None) -> Measurement:
    """Return the encodings, what the configuration asks for, and the toggles."""
    from lengthwise.foreign.calls import Probe
    from lengthwise.foreign.identify import identify
    from lengthwise.foreign.measurement import Measurement
    from lengthwise.foreign.requested import compare_with_configuration
    from lengthwise.foreign.toggles import check_start_tokens, check_toggles

    probe = Probe.of(model)  # before anything that a later call could depend on
    say("probing the encoding of each layer")
    found = identify(model)
    toggles = check_toggles(probe, relative=found.relative, flex=flex, said=lambda name: say(f"toggling: {name}"))
    if tokenizer is not None:
        toggles.append(check_start_tokens(tokenizer))
    return Measurement(found, compare_with_configuration(found, model), toggles)


def _trained_length(model: nn.Module) -> int | None:
    length = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    return length if isinstance(length, int) else None


def _tokens(tokenizer: PreTrainedTokenizerBase, text: str | Path | None) -> tuple[Tensor, list[int]]:
    """Return the tokens of a text or a file, and those of which made-up sequences may consist: no special ones."""
    import torch

    if isinstance(text, Path):
        try:
            text = text.read_text(errors="replace")
        except OSError as error:
            raise SpecError(f"the text cannot be read: {error}") from None
    chosen = _python_sources() if text is None else text
    try:
        ids = list(tokenizer(chosen, add_special_tokens=False, verbose=False)["input_ids"])
    except Exception as error:  # noqa: BLE001 (tokenizers raises nothing narrower for a word that it does not know)
        what = "Python's own library" if text is None else "the text"
        told = f"the tokenizer cannot read {what}: {one_line(str(error))[:200]}"
        raise SpecError(f"{told}; give a text of symbols that it knows") from None
    return torch.tensor(ids), sorted(set(ids) - set(tokenizer.all_special_ids))


def _python_sources(most: int = 2_000_000) -> str:
    """Return sources of Python's own library, which lie on every machine."""
    import sysconfig

    found, size = list[str](), 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        found.append(path.read_text(errors="ignore"))
        size += len(found[-1])
        if size > most:
            break
    return "\n".join(found)


def _transformers() -> Any:  # noqa: ANN401
    try:
        import transformers
    except ImportError:
        raise SpecError("models of others need transformers: pip install 'lengthwise[hf]'") from None
    return transformers


def _tokenizer(
    model: Model, given: PreTrainedTokenizerBase | None, *, required: bool
) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer that was given, or that of the folder."""
    if given is not None:
        return given
    if isinstance(model, str | Path):
        try:
            return _transformers().AutoTokenizer.from_pretrained(
                str(model), local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError, ImportError, TypeError, AttributeError):
            pass  # a folder without one is said below
    if required:
        raise SpecError("a text needs a tokenizer: save it into the model's folder, or give tokenizer=...")
    return None


def _loaded(model: Model, attention: str | None) -> nn.Module:
    """Return a model in float32: weights are often stored in bf16, in which slow frequencies cannot be read."""
    import torch

    if isinstance(model, torch.nn.Module):
        if attention is not None:
            raise SpecError("a model in memory has its kind of attention already; leave out attention")
        return model
    transformers = _transformers()
    if attention not in {None, "eager", "sdpa"}:
        raise SpecError(f"attention is eager or sdpa, not {attention!r}")
    chosen = {} if attention is None else {"attn_implementation": attention}
    if isinstance(model, transformers.PreTrainedConfig):
        return transformers.AutoModelForCausalLM.from_config(model, dtype=torch.float32, **chosen).eval()
    if Path(model).exists() and not (Path(model) / "config.json").is_file():
        raise SpecError(f"{model} is no folder of a Hugging Face model: it has no config.json")
    import lengthwise.hf  # noqa: F401 (it tells transformers what an exported run of ours is)

    try:
        loaded, report = transformers.AutoModelForCausalLM.from_pretrained(
            str(model),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            **chosen,
        )
    except Exception as error:  # noqa: BLE001 (a foreign folder raises whatever it likes)
        if not Path(model).exists():
            where = "here, nor a model of that name in the local cache; nothing is downloaded"
            raise SpecError(f"there is no folder {str(model)!r} {where}") from None
        if "Unrecognized configuration class" in str(error):
            raise SpecError(f"{model} is no causal language model") from None
        raise SpecError(f"{model} cannot be loaded: {one_line(str(error))[:300]}") from None
    if missing := sorted(report["missing_keys"]):
        raise SpecError(f"{model} has no weights for {', '.join(missing[:3])}: a part of it would be random")
    return loaded

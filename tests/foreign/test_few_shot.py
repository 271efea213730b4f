"""Our tasks on models of others: prompts, decoding, kinds of failures and rows, and what must be refused."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import lengthwise as lw
from lengthwise.evaluation.rows import COLUMNS, PREDICTIONS, validate
from lengthwise.foreign.few_shot import continuations, few_shot, has_vocabulary_of
from lengthwise.foreign.harness import write_lm_eval_task
from lengthwise.foreign.prompts import encode_prompt, judge, questions, shot_lengths
from lengthwise.spec import SpecError
from lengthwise.task import build_task

pytest.importorskip("transformers", reason="needs the extra hf")

from tests.foreign.trained import (
    BYTES,
    START,
    TASKS,
    built,
    byte_tokenizer,
    train_bytes,
    train_recall,
    word_tokenizer,
)

COPY, RECALL = TASKS
KINDS = ("right", "early", "late", "wrong", "cut")


class Scripted(nn.Module):
    """A model that says to each question what it was told to, and remembers what it was given."""

    def __init__(self, tokenizer, says: dict[str, str]) -> None:
        super().__init__()
        self.weight, self.tokenizer, self.says = nn.Parameter(torch.zeros(1)), tokenizer, says
        self.given: list[torch.Tensor] = []

    def forward(self, input_ids, use_cache=False):
        self.given.append(input_ids)
        logits_BTV = torch.zeros(*input_ids.shape, len(self.tokenizer))
        for row, ids in enumerate(input_ids.tolist()):
            line = self.tokenizer.decode(ids, skip_special_tokens=True).split("\n")[-1].strip()
            question, _, said = line.partition("->")
            words = self.says.get(f"{question.strip()} ->", "\n").split(" ")  # after its end, a row says anything
            next_word = words[min(len(said.split()), len(words) - 1)]
            logits_BTV[row, -1, self.tokenizer.get_vocab()[next_word]] = 1.0
        return SimpleNamespace(logits=logits_BTV, past_key_values=None)


def ending(answer: str, kind: str) -> str:
    """What a model says to be counted as this kind."""
    words = answer.split()
    other = "0" if words[0] != "0" else "1"
    return {
        "right": f"{answer} \n",
        "early": " ".join([*words[:-1], "\n"]),
        "late": f"{answer} {other} \n",
        "wrong": " ".join([other, *words[1:], "\n"]),
        "cut": f"{answer} {other}",  # and the last word for ever
    }[kind]


def scripted(length: int, kinds, shots: int = 4) -> tuple[Scripted, list]:
    asked = questions(build_task(COPY), "test_seen", length, shots, len(kinds))
    says = {one.text: ending(one.answer, kind) for one, kind in zip(asked, kinds, strict=True)}
    return Scripted(word_tokenizer(*TASKS), says), asked


def llama(tokenizer, seed: int = 0):
    model = built(len(tokenizer), 2, 256, 2, 1, seed).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.3)  # so that answers differ
    return model


# --- prompts ---------------------------------------------------------------------------------------------------------


def test_a_prompt_is_lines_of_solved_examples_and_a_question():
    asked = questions(build_task(COPY), "test_seen", 3, 2, 2)
    first, second = asked[0].prompt.split("\n"), asked[1].prompt.split("\n")
    assert len(first) == 3 and first[-1].endswith(" [SEP] ->") and first[:2] != second[:2]
    for line in first[:2]:
        question, answer = line.split(" [SEP] -> ")
        assert question == answer
    assert asked[0].whole.endswith(f"-> {asked[0].answer}\n") and asked[0].answer == asked[0].text[: -len(" [SEP] ->")]
    assert questions(build_task(COPY), "test_seen", 3, 0, 1)[0].shots == ""


def test_solved_examples_are_never_longer_than_the_trained_lengths_and_never_the_question():
    task = build_task("copy:variant=same:alphabet=26:longest=4")
    assert shot_lengths(task, 4) == [1, 2, 3, 4] and shot_lengths(task, 2) == [2, 4]
    assert shot_lengths(task, 1) == [4] and len(shot_lengths(task, 9)) == 9
    for one in questions(task, "test_seen", 2, 8):
        assert one.text not in one.shots
    assert max(line.count(" ") for line in questions(task, "test_far", 16, 4)[0].shots.splitlines()) == 4 + 4 + 1


@pytest.mark.parametrize("joined", ["", ", "])
def test_symbols_are_joined_as_asked(joined):
    task = build_task(COPY)
    one = questions(task, "test_seen", 3, 1, 1, joined)[0]
    letters = one.answer.split(joined) if joined else list(one.answer)
    assert len(letters) == 3 and joined.join([*letters, "[SEP]"]) + " ->" == one.text
    assert judge(task, one, f" {one.answer}", True, joined) == ("right", None)
    assert judge(task, one, joined.join(letters[:2]), True, joined) == ("early", 2)
    assert judge(task, one, "", True, joined) == ("early", 0)


def test_a_planted_second_beginning_token_is_named():
    from tokenizers import processors

    tokenizer = word_tokenizer(*TASKS)
    assert encode_prompt(tokenizer, "a b ->").count(tokenizer.bos_token_id) == 1
    for many in (2, 3):
        template = processors.TemplateProcessing(single=f"{f'{START} ' * many}$A", special_tokens=[(START, 1)])
        tokenizer.backend_tokenizer.post_processor = template
        with pytest.raises(SpecError, match=f"puts {many} beginning tokens '<bos>' before a prompt"):
            few_shot(llama(tokenizer), tokenizer, COPY, [2])


def test_an_end_token_after_the_prompt_is_named():
    from tokenizers import processors

    tokenizer = word_tokenizer(*TASKS)
    template = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 2)])
    tokenizer.backend_tokenizer.post_processor = template
    with pytest.raises(SpecError, match="ends a prompt with '<eos>', after which a model begins another text"):
        encode_prompt(tokenizer, "a b ->")


def test_a_symbol_that_the_tokenizer_does_not_know_is_named():
    tokenizer = word_tokenizer(COPY)
    with pytest.raises(SpecError, match="the tokenizer cannot read"):
        few_shot(llama(tokenizer), tokenizer, RECALL, [2])
    tokenizer.add_special_tokens({"unk_token": "<unk>"})
    from tokenizers import models

    vocabulary = {**tokenizer.get_vocab(), "<unk>": len(tokenizer) - 1}
    tokenizer.backend_tokenizer.model = models.WordLevel(vocabulary, unk_token="<unk>")
    with pytest.raises(SpecError, match="does not give a prompt back: 'k3' is lost or changed"):
        encode_prompt(tokenizer, "a k3 ->")


def test_a_byte_level_tokenizer_gives_every_prompt_back():
    tokenizer, one = byte_tokenizer(), questions(build_task("addition"), "test_seen", 3, 4, 1)[0]
    assert encode_prompt(tokenizer, one.whole) == list(one.whole.encode()) and tokenizer.eos_token_id == BYTES


# --- answers and rows ------------------------------------------------------------------------------------------------


def test_a_model_that_answers_right_gets_every_row_right():
    model, asked = scripted(3, ["right"] * 6)
    found = few_shot(model, model.tokenizer, COPY, [3], examples=6)
    assert found.accuracy == {3: 1.0} and found.prompt == asked[0].prompt
    assert list(found.rows.columns) == list(COLUMNS) and list(found.predictions.columns) == list(PREDICTIONS)
    assert validate(found.rows, "few-shot").to_dicts() == [
        {"run": None, "evaluation": "few-shot 4", "checkpoint": "last", "split": "test_seen", "seen": True, "length": 3}
        | {"subgroup": None, "tokens": len(model.tokenizer(asked[0].whole).input_ids), "examples": 6, "correct": 6}
        | {"correct_content": None, "early": 0, "late": 0, "wrong": 0, "cut": 0, "chance": 26**-3}
        | {"loss": None, "targets": None}
    ]
    assert "copy after 4 solved examples" in str(found) and json.dumps(found.plain())


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_failure_is_counted_as_such(kind):
    model, asked = scripted(3, [kind, "right", "right"])
    found = few_shot(model, model.tokenizer, COPY, "3", examples=3)
    counts = {name: found.rows["correct" if name == "right" else name].item() for name in KINDS}
    assert counts == {name: 2 * (name == "right") + (name == kind) for name in KINDS}
    first = found.predictions.row(0, named=True)
    assert (first["kind"], first["prompt"], first["answer"]) == (kind, asked[0].text, asked[0].answer)
    assert first["first_wrong"] == {"right": None, "early": 2, "late": 3, "wrong": 0, "cut": 3}[kind]


def test_the_rows_go_into_our_own_statistics():
    """Right up to length 10, wrong at 11: the reach is 10."""
    task, says, lengths = build_task(COPY), dict[str, str](), [7, 8, 9, 10, 11]
    for length in lengths:
        for one in questions(task, "test_seen" if length <= 8 else "test_unseen", length, 1, 2):
            says[one.text] = ending(one.answer, "right" if length < 11 else "wrong")
    tokenizer = word_tokenizer(*TASKS)
    found = few_shot(Scripted(tokenizer, says), tokenizer, task, lengths, shots=1, examples=2)
    assert (lw.reach(found.rows).length, lw.reach(found.rows).beyond) == (10, False)
    assert found.rows["seen"].to_list() == [length <= 8 for length in lengths]


def test_the_end_token_ends_an_answer_as_a_line_does():
    model, asked = scripted(3, ["right"])
    model.says[asked[0].text] = f"{asked[0].answer} <eos>"
    assert few_shot(model, model.tokenizer, COPY, [3], examples=1).accuracy == {3: 1.0}


def test_a_task_with_its_own_check_takes_every_right_answer():
    task = build_task("addition:scratchpad=full")
    one = questions(task, "test_seen", 2, 1, 1)[0]
    words, steps = one.answer.split(), len(task.to_example(one.instance).steps)
    assert task.judged and steps
    assert judge(task, one, one.answer, True)[0] == "right"
    assert judge(task, one, " ".join([*words[:-1], "nonsense"]), True)[0] == "wrong"


def test_prompts_are_decoded_without_padding_in_batches_of_equal_length():
    tokenizer = word_tokenizer(*TASKS)
    prompts = [tokenizer(text).input_ids for text in ("a ->", "a b ->", "c ->", "c d ->", "e f ->")]
    model = Scripted(tokenizer, {tokenizer.decode(ids, skip_special_tokens=True): "a \n" for ids in prompts})
    said = continuations(model, prompts, 5, lambda token: token == tokenizer.get_vocab()["\n"], batch_rows=2)
    assert [tokenizer.decode(ids).strip(" ") for ids in said] == ["a \n"] * 5
    firsts = [row for batch in model.given for row in batch.tolist() if row in prompts]
    assert sorted(firsts) == sorted(prompts) and max(len(batch) for batch in model.given) == 2


def test_batches_caches_and_transformers_own_generation_agree():
    tokenizer = word_tokenizer(*TASKS)
    model, asked = llama(tokenizer), questions(build_task(RECALL), "test_seen", 2, 2, 6)
    prompts = [encode_prompt(tokenizer, text) for one in asked for text in (one.prompt, one.text)]

    def is_end(token: int) -> bool:
        return token % 9 == 4

    together = continuations(model, prompts, 8, is_end)
    assert len({len(ids) for ids in together}) > 1, "some stop early"
    assert together == continuations(model, prompts, 8, is_end, batch_rows=1)
    assert together == continuations(model, prompts, 8, is_end, cached=False)
    ends = [token for token in range(len(tokenizer)) if is_end(token)]
    for ids, said in zip(prompts, together, strict=True):
        given = torch.tensor([ids])
        alone = model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=8, do_sample=False, eos_token_id=ends
        )
        assert alone[0, len(ids) :].tolist() == said


def test_a_broken_cache_changes_answers_and_no_cache_is_a_way_around():
    """Planted: with a cache, the model forgets everything but the last token."""
    tokenizer = word_tokenizer(*TASKS)
    model = llama(tokenizer)
    inner, prompts = model.forward, [tokenizer("a b c ->").input_ids]
    right = continuations(model, prompts, 8, lambda _: False)

    def forgetful(input_ids, use_cache=False, past_key_values=None):
        found = inner(input_ids)
        return SimpleNamespace(logits=found.logits, past_key_values=())

    model.forward = forgetful
    assert continuations(model, prompts, 8, lambda _: False) != right
    assert continuations(model, prompts, 8, lambda _: False, cached=False) == right


def test_a_model_is_left_in_the_mode_it_was_in():
    model, _ = scripted(2, ["right"])
    few_shot(model.train(), model.tokenizer, COPY, [2], examples=1)
    assert model.training


def test_a_table_of_positions_that_ends_is_an_error_of_one_line():
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = word_tokenizer(*TASKS)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=8, n_layer=1, n_head=1, n_positions=40))
    assert few_shot(model, tokenizer, COPY, [2], shots=1, examples=2).accuracy.keys() == {2}
    with pytest.raises(SpecError, match=r"the model failed on .* tokens.* test shorter lengths"):
        few_shot(model, tokenizer, COPY, [16], examples=2)


def test_what_cannot_be_asked_is_refused():
    model, _ = scripted(2, ["right"])
    with pytest.raises(SpecError, match="shots are 0 or more"):
        few_shot(model, model.tokenizer, COPY, [2], shots=-1)


# --- our own models --------------------------------------------------------------------------------------------------

SMALL = "laptop:width=32:heads=2:feed_forward_width=64:layers=2"


@pytest.mark.parametrize(
    "encoding", [pytest.param("rope", marks=pytest.mark.slow), pytest.param("alibi", marks=pytest.mark.evidence)]
)
def test_an_exported_run_gets_the_rows_that_the_run_has(encoding, tmp_path, figure):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import lengthwise.hf  # noqa: F401

    run = lw.train(
        "copy:alphabet=4:longest=3",
        *(encoding,),
        model=SMALL,
        steps=400,
        batch_size=32,
        store=str(tmp_path / "store"),
        quiet=True,
    )
    lw.export_model(run, tmp_path / "exported")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "exported")
    found = few_shot(model, tokenizer, run.task, shots=0, examples=None)
    own = lw.evaluate(run)
    assert found.rows.drop("run").equals(own.drop("run"))
    right, examples = own["correct"].sum(), own["examples"].sum()
    assert 0 < right < examples, "some are right and some are not"
    figure(f"{encoding}: {len(own)} rows of an exported run are those of the run, {right} of {examples} right")
    with pytest.raises(SpecError, match="knows the symbols of copy alone and cannot read solved examples"):
        few_shot(model, tokenizer, run.task, shots=1)
    with torch.no_grad():  # other weights give other rows
        model.decoder.embedding.weight.add_(torch.randn_like(model.decoder.embedding.weight))
    assert not few_shot(model, tokenizer, run.task, shots=0, examples=None).rows.drop("run").equals(own.drop("run"))


def test_a_tokenizer_of_our_vocabulary_is_known_and_must_read_prompts_as_we_do():
    from tokenizers import processors

    from lengthwise.hf.export import tokenizer_of

    task = build_task("copy:alphabet=5:longest=3")
    tokenizer = tokenizer_of(task)
    assert has_vocabulary_of(tokenizer, task) and not has_vocabulary_of(tokenizer, build_task(COPY))
    model = llama(tokenizer)
    rows = few_shot(model, tokenizer, task, [2], shots=0, examples=4).rows
    assert rows["evaluation"].to_list() == ["as trained"] and rows["loss"].item() > 0
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    with pytest.raises(SpecError, match="does not read a prompt as copy was trained"):
        few_shot(model, tokenizer, task, [2], shots=0, examples=4)


def test_a_tokenizer_that_knows_only_its_own_words_is_no_traceback():
    """It raises for any other word, where most have a token for unknown ones."""
    from tokenizers import processors

    from lengthwise.foreign.toggles import RIGHT, WRONG, check_start_tokens

    tokenizer = word_tokenizer(*TASKS)
    assert check_start_tokens(tokenizer).answer == RIGHT
    with pytest.raises(SpecError, match="the tokenizer cannot read Python's own library"):
        lw.measure(llama(tokenizer), tokenizer=tokenizer, lengths=[16])
    twice = processors.TemplateProcessing(single=f"{START} {START} $A", special_tokens=[(START, 1)])
    tokenizer.backend_tokenizer.post_processor = twice
    assert check_start_tokens(tokenizer).answer == WRONG


# --- the harness -----------------------------------------------------------------------------------------------------


def test_files_for_the_harness_have_the_same_questions(tmp_path):
    made = write_lm_eval_task(COPY, [2, 8], tmp_path / "harness", shots=3, examples=5)
    assert made.tasks == {length: f"lengthwise_copy_random_3shot_length{length}" for length in (2, 8)}
    settings = json.loads((made.folder / f"{made.tasks[8]}.yaml").read_text())
    data = settings["dataset_kwargs"]["data_files"]["test"]
    lines = [json.loads(line) for line in Path(data).read_text().splitlines()]
    asked = questions(build_task(COPY), "test_seen", 8, 3, 5)
    assert [(line["prompt"], line["answer"]) for line in lines] == [(one.prompt, one.answer) for one in asked]
    assert settings["generation_kwargs"]["until"] == ["\n"] and settings["num_fewshot"] == 0
    group = json.loads((made.folder / f"{made.group}.yaml").read_text())
    assert group == {"group": made.group, "task": list(made.tasks.values())} and made.group in made.command


# --- models that are trained here ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_trainings_learn_something_in_a_few_steps(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    facts = train_bytes(tmp_path / "bytes", steps=20, layers=1, rows=4, context=64)
    assert facts["held_out_bits_per_byte"] < 7
    train_recall(tmp_path / "recall", [((1,), 1, 4, 2), ((0, 1), 2, 4, 2)], layers=1)
    for name in ("bytes", "recall"):
        files = {path.name for path in (tmp_path / name).iterdir()}
        assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= files
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / name, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name, local_files_only=True, use_safetensors=True)
        assert len(tokenizer) == model.config.vocab_size
        few_shot(model, tokenizer, COPY, [2], examples=2)


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    return train_recall(tmp_path_factory.mktemp("taught") / "recall")


@pytest.mark.evidence
@pytest.mark.timeout(3600)
def test_a_model_trained_here_copies_through_the_few_shot_path(taught, figure):
    figure(f"{COPY}: {taught[COPY]}")
    assert min(share for length, share in taught[COPY].items() if length <= 8) >= 0.9


@pytest.mark.evidence
@pytest.mark.timeout(3600)
def test_a_model_trained_here_recalls_through_the_few_shot_path(taught, figure):
    figure(f"{RECALL}: {taught[RECALL]}")
    assert min(share for length, share in taught[RECALL].items() if length <= 4) >= 0.9


@pytest.mark.evidence
def test_a_model_trained_here_has_learned_pythons_own_sources(tmp_path, figure):
    facts = train_bytes(tmp_path / "bytes")
    figure(f"held-out bits per byte: {facts['held_out_bits_per_byte']:.3f}")
    assert facts["held_out_bits_per_byte"] < 3

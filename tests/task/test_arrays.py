"""Vocabulary and arrays: nothing is cut, the loss is on the answer and its end exactly, batches are what was made."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.spec import SpecError
from lengthwise.task import FROM_DATA, PUBLISHED, TASKS, build_task
from lengthwise.task.block import evaluation_block, materialise, training_block
from lengthwise.task.sets import instance_factory, lengths_of
from lengthwise.task.vocabulary import Vocabulary, join_symbols

NAMES = [
    *PUBLISHED,
    *(f"{name}:protocol=paper" for name in PUBLISHED),
    *(name for name in TASKS if name not in FROM_DATA and name not in {p.partition(":")[0] for p in PUBLISHED}),
    *("addition:scratchpad=full", "copy:bos=false"),
]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_ids_go_there_and_back_and_the_loss_is_on_the_answer(name, data):
    task = build_task(name)
    index = data.draw(st.integers(0, 1000))
    block = training_block(task, index, index + 5)
    for row in range(5):
        example = task.to_example(instance_factory(task, "train", int(block.lengths_N[row]))(int(block.indices_N[row])))
        ids = block.ids[block.starts_N[row] : block.starts_N[row + 1]]
        read = task.vocabulary.read(ids.tolist())
        asked = [*(("<bos>",) if task.starts else ()), *example.prompt]
        assert read == [*asked, *example.target, "<eos>"]
        assert block.prompt_lengths_N[row] == len(asked)
        assert block.token_counts_N[row] == len(read)


@pytest.mark.parametrize("name", ["addition", "copy:protocol=paper", "pcfg"])
def test_a_batch_is_its_rows_padded_on_the_right(name):
    task = build_task(name)
    block = training_block(task, 0, 64)
    for rows in (slice(10, 30), np.array([5, 3, 60])):
        batch = block.batch(rows)
        chosen = np.arange(64)[rows]
        assert batch.ids_BT.shape == (len(chosen), block.token_counts_N[rows].max())
        for place, row in enumerate(chosen):
            tokens, prompt = int(block.token_counts_N[row]), int(block.prompt_lengths_N[row])
            real = block.ids[block.starts_N[row] : block.starts_N[row + 1]]
            assert (batch.ids_BT[place, :tokens] == real).all()
            assert (batch.ids_BT[place, tokens:] == 0).all()
            assert batch.tokens_B[place] == tokens
            assert batch.loss_BT[place].tolist() == [prompt <= at < tokens for at in range(batch.ids_BT.shape[1])]


@pytest.mark.parametrize("name", ["copy", "dyck", "scan", "addition:protocol=paper", "scan:protocol=paper"])
def test_an_evaluation_block_is_made_again_from_its_lengths_and_indices(name):
    task = build_task(name)
    for split in ("validation", "test_unseen"):
        whole = evaluation_block(task, split, lengths_of(task, split)[3])
        again = materialise(task, split, whole.lengths_N, whole.indices_N)
        assert (again.ids == whole.ids).all()
        assert (again.starts_N == whole.starts_N).all()


def test_exactly_one_beginning_token_and_only_under_ours():
    ours, paper = (evaluation_block(build_task(f"parity:protocol={p}"), "validation", 8) for p in ("ours", "paper"))
    begin = ours.starts_N[:-1]
    assert (ours.ids == 1).sum() == len(ours)
    assert (ours.ids[begin] == 1).all()
    assert not (paper.ids == 1).any()
    assert (ours.ids == 2).sum() == len(ours)


def test_a_digit_is_a_token():
    task = build_task("addition")
    assert len(task.vocabulary.ids("9" * 17)) == 17


def test_lengths_of_ten_thousand_are_made():
    for name in (
        "copy",
        "addition",
        "multiplication",
        "parity",
        "count",
        "modular",
        "flipflop",
        "dyck",
        "sort",
        "lego:names=1000",
    ):
        task = build_task(name)
        length = 1000 if name.startswith("lego") else 10_000
        instance = instance_factory(task, "test_far", length)(0)
        example = task.to_example(instance)
        assert task.check(instance, example.target)
        assert len(example.prompt) > length
        assert 0 <= task.chance(length) <= 0.5


def test_a_block_is_bounded():
    with pytest.raises(SpecError, match="at most 65536"):
        materialise(build_task("copy"), "train", [5] * 70_000, range(70_000))


def test_progress_is_told_of_every_example():
    told = []
    training_block(build_task("parity"), 0, 5000, on_progress=told.append)
    assert sum(told) == 5000
    assert len(told) > 1


def test_an_unknown_symbol_names_the_example(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from lengthwise.task.parity import Parity\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(Parity):\n"
        "    symbols = ('0', '1', '=', 'even')\n"
    )
    with pytest.raises(SpecError, match=r"example \d+ of mine, length \d: the symbol 'odd' is not in the vocabulary"):
        training_block(build_task(f"{tmp_path}/mine.py:Mine"), 0, 100)


def test_a_symbol_twice_is_refused():
    with pytest.raises(SpecError, match="come twice: a"):
        Vocabulary(("a", "b", "a"))


def test_glued_symbols_are_glued():
    assert join_symbols(("Sort", "[", "M", "##,", "E", "]", "##.")) == "Sort [ M, E ]."


@pytest.mark.parametrize("name", ["addition", "multiplication"])
def test_formats_show_the_same_instance(name):
    formats = ["", ":reversed=answer", ":reversed=all", ":padded=true", ":hints=20", ":spaces=0.5"]
    made = [instance_factory(build_task(name + one), "train", 6)(9) for one in formats]
    assert len(set(made)) == 1


def test_formats_are_what_the_literature_writes():
    shown = {
        "": "9 6 + 5 = 1 0 1",
        ":reversed=answer": "9 6 + 5 = 1 0 1",
        ":reversed=all": "6 9 + 5 = 1 0 1",
        ":padded=true": "9 6 + 0 5 = 1 0 1",
        ":hints=3": "h1 9 h0 6 + h0 5 = h2 1 h1 0 h0 1",
        ":hints=3:reversed=all": "h0 6 h1 9 + h0 5 = h0 1 h1 0 h2 1",
    }
    for form, wanted in shown.items():
        assert build_task(f"addition:longest=2{form}").to_example(("96", "5")).text == wanted
    assert build_task("addition:reversed=answer").to_example(("96", "7")).text == "9 6 + 7 = 3 0 1"
    assert build_task("addition:padded=true").to_example(("12", "5")).text == "1 2 + 0 5 = 0 1 7"


def test_hints_start_anywhere_and_spaces_come_anywhere():
    task = build_task("addition:hints=30:spaces=0.5")
    make = instance_factory(task, "train", 5)
    starts, gaps = set(), 0
    for index in range(300):
        prompt = task.to_example(make(index)).prompt
        starts.add(prompt[-3] if prompt[-2] != "_" else prompt[-4])
        gaps += prompt.count("_")
    assert len(starts) == 25  # 30 hints for up to 6 digits
    digits = sum(len("".join(make(index))) for index in range(300))
    assert abs(gaps - digits / 2) < 5 * (digits / 4) ** 0.5

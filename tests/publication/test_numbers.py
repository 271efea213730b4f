"""Every published number in code equals that of the original's tables, to the digits it is printed with."""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest

from lengthwise.publication import (
    CATEGORIES,
    ENCODINGS,
    ROTARY,
    SEEDS,
    TASKS,
    TOPICS,
    published_encoding,
    published_task,
    tables,
)
from lengthwise.publication.accuracy import PER_SEED, SEEN, UNSEEN
from lengthwise.publication.attention import BY_LAYER, BY_LENGTH, COUNTS, DIVERGENCE, FRACTIONS
from lengthwise.publication.curves import CURVES
from lengthwise.publication.mrr import MRR
from lengthwise.publication.scratchpads import ACCURACY, BY_ENCODING, BY_TASK, FORMATS

FOLDER = Path(__file__).parents[3] / "shared" / "published"
ABSENT = pytest.mark.skipif(not FOLDER.exists(), reason="the original study's tables are not beside the checkout")
THEIRS = dict(zip(ENCODINGS, ("none", "t5_relative_bias", "alibi", "rotary", "abs_sinusoid"), strict=True))
NAMES = {"copy": "s2s_copy", "reverse": "s2s_reverse", "addition": "s2s_addition", "polynomial": "s2s_poly"}
NAMES |= {"sort": "s2s_sort", "summation": "s2s_sum", "parity": "s2s_parity", "lego": "s2s_lego"}


def rows(name):
    with (FOLDER / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def key(task):
    """Their name of a task and its split."""
    name = task.partition(":")[0]
    return NAMES.get(name, name), TASKS[task].split


@pytest.fixture(scope="module")
def accuracy():
    """Their rows by (task, split), without those that were run again for another purpose."""
    found = defaultdict(list)
    for row in rows("accuracy"):
        if "re-run" not in row["source"]:
            found[row["task"], row["split"]].append(row)
    return found


@ABSENT
def test_means():
    theirs = {(row["task"], row["split"]): row for row in rows("mean_accuracy_per_task")}
    assert len(theirs) == len(UNSEEN) == 17
    for task in TASKS:
        row = theirs[key(task)]
        for name, pe in THEIRS.items():
            assert UNSEEN[task][name] == float(row[f"test_unseen__{pe}"])
            seen = row[f"valid_seen__{pe}"]
            assert (float(seen) if seen else None) == SEEN.get(task, {}).get(name)


@ABSENT
def test_seeds(accuracy):
    for task in TASKS:
        found = {
            (row["pe"], row["seed"]): float(row["accuracy"])
            for row in accuracy[key(task)]
            if row["scratchpad"] == "no_scratchpad" and row["category"] == "overall" and row["seed"] != "mean3"
            if row["eval_set"] == "test_unseen"
        }
        assert bool(found) == (task in PER_SEED)
        for name, pe in THEIRS.items():
            if found:
                assert PER_SEED[task][name] == tuple(found[pe, str(seed)] for seed in SEEDS)


@ABSENT
@pytest.mark.parametrize("task", TASKS)
def test_curves(task, accuracy):
    theirs = defaultdict(list)
    for row in accuracy[key(task)]:
        if row["scratchpad"] == "no_scratchpad" and row["category"] != "overall":
            theirs[row["pe"], int(row["length"])].append(float(row["accuracy"]))
    ours = {(THEIRS[name], length): value for name, line in CURVES[task].items() for length, value in line.items()}
    assert ours.keys() == theirs.keys()
    for place, values in theirs.items():
        assert ours[place] == pytest.approx(fmean(values), abs=0.0005 + 1e-9)


@ABSENT
def test_ranks():
    columns = {
        "overall": "overall_51_queries_notebook",
        "primitive": "primitive_24_queries_recomputed",
        "maths": "math_21_queries_implied",
        "classic": "classic_6_queries_recomputed",
        "with scratchpads": "all_scratchpad_configs_173_queries_notebook",
        "seed means": "seedmean_17_tasks",
    }
    theirs = {row["pe"]: row for row in rows("mrr")}
    for name, pe in THEIRS.items():
        assert round(MRR["overall"][name], 2) == float(theirs[pe]["paper_figure1"])
        for recipe, column in columns.items():
            assert MRR[recipe][name] == float(theirs[pe][column])


@ABSENT
def test_scratchpads(accuracy):
    codes = {"none": "no_scratchpad", "minimal": "i0_c1_o1_v0_r0"}
    wanted = 0
    for task, formats in ACCURACY.items():
        kept = len(formats) == len(FORMATS)  # has variables
        parts = dict(zip(("input", "computation", "output", "variables", "remaining"), "icovr", strict=True))
        found = {
            (row["scratchpad"].partition("(")[0], row["pe"]): float(row["accuracy"])
            for row in accuracy[key(task)]
            if row["category"] == "overall" and row["seed"] == "mean3"
        }
        wanted += len(found)
        for name, values in formats.items():
            off = {parts[name.removeprefix("full-")]} if name.startswith("full-") else set()
            off |= set() if kept else {"v"}
            code = codes.get(name) or "_".join(f"{part}{int(part not in off)}" for part in "icovr")
            if name == "full-input" and not kept:
                code = "i0_c1_o1_v0_r1+i1_c0_o1_v0_r1"  # merged by a wrong label
            for encoding, value in values.items():
                assert found[code, THEIRS[encoding]] == value
    assert wanted == sum(5 * len(formats) for formats in ACCURACY.values())


@ABSENT
def test_ranks_of_scratchpads():
    words = dict(zip(FORMATS, ("No Scratchpad", "Full", "Minimal"), strict=False))
    words |= {"full-input": "Full - Step Input", "full-computation": "Full - Step Computation"}
    words |= {"full-output": "Full - Step Output", "full-variables": "Full - Intermediate Vars"}
    words |= {"full-remaining": "Full - Remaining Parts"}
    tasks = {"lego": "LEGO", "sort:variant=multi": "Sort (multi digit)"}
    theirs = {(row["group"], row["key"], row["scratchpad"]): float(row["mrr"]) for row in rows("scratchpad_mrr")}
    ours = {
        ("per_task", tasks.get(task, task.capitalize()), words[name]): value
        for task, line in BY_TASK.items()
        for name, value in line.items()
    }
    ours |= {
        ("per_model", THEIRS[encoding], words[name]): value
        for encoding, line in BY_ENCODING.items()
        for name, value in line.items()
    }
    assert ours == theirs


@ABSENT
def test_attention():
    theirs = [row for row in rows("attention_distance") if row["metric"].startswith("jsd_as_coded")]
    for name, pe in THEIRS.items():
        mine = [row for row in theirs if row["model_vs_nope"] == pe]
        every = {int(row["length"]): float(row["value"]) for row in mine if row["layer"] == "all"}
        assert every.keys() == BY_LENGTH[name].keys()
        for length, value in every.items():
            assert BY_LENGTH[name][length] == pytest.approx(value, abs=0.0005 + 1e-9)
        assert DIVERGENCE[name] == pytest.approx(fmean(every.values()), abs=0.0005)
        for layer, value in enumerate(BY_LAYER[name], 1):
            mean = fmean(float(row["value"]) for row in mine if row["layer"] == str(layer))
            assert value == pytest.approx(mean, abs=0.0005 + 1e-9)


@ABSENT
def test_attended_distance():
    theirs = [row for row in rows("attended_distance_pdf") if row["task"] == "s2s_addition"]
    for name, pe in THEIRS.items():
        mine = [row for row in theirs if row["pe"] == pe]
        assert COUNTS[name] == [int(row["count"]) for row in mine]
        for share, row in zip(FRACTIONS[name], mine, strict=True):
            assert share == pytest.approx(float(row["fraction"]), abs=1e-5)


@ABSENT
def test_instruction_lengths():
    from lengthwise.publication.lengths import COUNTS, edges

    for name, theirs in (("FLAN (CoT)", "FLAN_CoT"), ("Super-NaturalInstructions", "NIv2")):
        mine = [row for row in rows("instruction_length_hist") if row["dataset"].startswith(f"{theirs} (figure")]
        assert COUNTS[name] == [int(row["count"]) for row in mine]
        assert edges()[:-1] == [float(row["bin_left"]) for row in mine]


# --- what needs no table beside it ------------------------------------------------------------------------------------


def test_the_published_recipe_gives_the_published_ranks_of_two_categories():
    """Ranks per (task, seed), ties by the order Rotary, ALiBi, T5, APE, NoPE."""
    order = [ROTARY, "alibi", "t5", "sinusoidal", "nope"]
    for category in ("primitive", "classic"):
        found = defaultdict(list)
        for task in (task for task in TASKS if TASKS[task].category == category):
            for seed in range(3):
                ranked = sorted(order, key=lambda name: -PER_SEED[task][name][seed])
                for rank, name in enumerate(ranked, 1):
                    found[name].append(1 / rank)
        assert {name: round(fmean(found[name]), 6) for name in ENCODINGS} == MRR[category]


def test_categories_add_up_to_the_whole():
    counts = {"primitive": 24, "maths": 21, "classic": 6}
    assert counts == {c: 3 * sum(task.category == c for task in TASKS.values()) for c in CATEGORIES}
    for name in ENCODINGS:
        whole = sum(MRR[category][name] * count for category, count in counts.items()) / 51
        assert whole == pytest.approx(MRR["overall"][name], abs=2e-6)
    for recipe, values in MRR.items():
        tie = 1 / 4 - 1 / 5 if recipe == "seed means" else 0  # Rotary and APE both fourth, in one of 17
        assert sum(values.values()) == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5 + tie / 17, abs=1e-5)


def test_means_are_those_of_the_seeds():
    for task, values in PER_SEED.items():
        for name, seeds in values.items():
            assert fmean(seeds) == pytest.approx(UNSEEN[task][name], abs=1e-4)


@pytest.mark.parametrize("topic", TOPICS)
def test_every_table_has_its_source_unit_and_faults(topic):
    for table in tables(topic):
        assert table.rows and table.unit and table.what
        assert "arXiv:" in table.source
        assert table.defects
        assert len({tuple(row) for row in table.rows}) == 1  # the same columns


def test_our_names_are_theirs():
    from lengthwise.encoding.signature import canonical_encoding
    from lengthwise.spec import Spec, options, resolve
    from lengthwise.task import PUBLISHED
    from lengthwise.task import TASKS as OURS

    assert tuple(TASKS) == PUBLISHED
    for name in ENCODINGS:
        assert str(canonical_encoding(Spec.of(name))) == name
        assert published_encoding(name, head_width=64) == name
    for task, about in TASKS.items():
        assert published_task(task) == task
        assert about.unit == resolve("task", OURS, Spec.of(task).name).unit
    for name in ("copy", "reverse", "sort"):  # the variant where none is given
        default = options(resolve("task", OURS, name))["variant"].default
        assert published_task(name) == f"{name}:variant={default}"
    assert published_task("copy:longest=16:variant=same:protocol=paper") == "copy:variant=same"
    assert published_task("addition:scratchpad=full") is None
    assert published_task("dyck") is None
    # Rotary turns 16 coordinates: all of a head of 16, a quarter of one of 64.
    assert published_encoding("rope") == published_encoding("rope:interleaved=true") == ROTARY
    assert published_encoding("rope:fraction=0.25") is None and published_encoding("rope", head_width=64) is None
    assert published_encoding("rope:fraction=0.25", head_width=64) == ROTARY
    assert published_encoding("rope:theta=100.0") is None
    assert published_encoding("t5:buckets=64") is None

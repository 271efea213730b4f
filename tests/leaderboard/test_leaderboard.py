"""The leaderboard: an honest entry passes, and each way of cheating that we could think of is refused."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import torch
import yaml
from filelock import FileLock

import lengthwise as lw
from lengthwise.leaderboard import checks, entry, source
from lengthwise.leaderboard.tampering import Snapshot
from lengthwise.spec import SpecError
from lengthwise.study.file import StudyFile
from tests.damage import reseal_bundle
from tests.study.conftest import LEADERBOARD as STUDY

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """A folder with two honest entries, NoPE and one made from a template, and the study that they ran."""
    base, home = tmp_path_factory.getbasetemp(), tmp_path_factory.mktemp("board") / "here"
    # Its runs are made once: the workers of xdist have folders side by side.
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "board"
    with pytest.MonkeyPatch.context() as patch:
        with FileLock(f"{shared}.lock"):
            if not shared.exists():
                _make_entries(base / "board-begun", patch)
                (base / "board-begun").rename(shared)
        shutil.copytree(shared, home)
        _use_study(home, patch)
        yield home


def _use_study(home: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("lengthwise.interface.leaderboard.STUDY", str(home / "study.yaml"))
    patch.setattr("lengthwise.leaderboard.entry.STUDY", str(home / "study.yaml"))


def _make_entries(home: Path, patch: pytest.MonkeyPatch) -> None:
    home.mkdir()
    (home / "study.yaml").write_text(yaml.safe_dump(STUDY))
    lw.write_template("encoding", "mine", home)
    _use_study(home, patch)
    where = {"root": home / "leaderboard", "store": str(home / "store"), "executor": "inline"}
    made = [
        lw.submit_entry(what, authors="A. Student", **where) for what in ("nope", f"{home / 'mine.py'}:Mine:slope=2.0")
    ]
    assert [one.check.errors for one in made] == [[], []]
    assert "git add" in str(made[1])


@pytest.fixture
def cheat(board, tmp_path):
    """A copy of the honest entry, to be changed."""
    shutil.copytree(board / "leaderboard", tmp_path / "leaderboard", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "leaderboard" / "mine"


def test_an_entry_whose_runs_are_not_finished_is_left_out_and_told_how_to_go_on(cheat):
    for path in cheat.iterdir():
        if path.name not in {"card.yaml", "encoding.py"}:
            path.unlink()
    assert [line.entry.name for line in lw.standings(cheat.parent).lines] == ["nope"]
    assert "submit, with the same options, goes on where it stopped" in errors(cheat, execute=False)


def errors(folder: Path, **how: object) -> str:
    return "\n".join(lw.check_entry(folder, **how).errors)


def edit_lines(folder: Path, change) -> None:
    lines = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    (folder / "runs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in map(change, lines) if one is not None))
    reseal_bundle(folder)


# --- honest entries --------------------------------------------------------------------------------------------------


def test_an_honest_entry_passes_and_its_runs_come_out_bit_equal(board):
    found = lw.check_entry(board / "leaderboard" / "mine", allow_code=True)
    assert not found.errors and found.executed
    assert (
        found.again is not None and found.again.equal and len(found.again.runs) == 3
    )  # one of each task and a tuning run
    assert {line.entry.name for line in found.table.lines} == {"nope", "mine"}


def test_ids_computed_without_importing_equal_those_of_the_class(board):
    one = entry.Entry(board / "leaderboard" / "mine", StudyFile.read(str(board / "study.yaml")))
    summaries = one.bundle.ended_records
    plain, loaded = one.planned().items(summaries), one.planned_with_code().items(summaries)
    assert [item.key for item in plain[0]] == [item.key for item in loaded[0]]
    assert set(one.bundle.lines) == {item.key for item in plain[0]} and not plain[1]


def test_the_card_has_the_price_of_the_encoding(board):
    card = lw.check_entry(board / "leaderboard" / "mine", execute=False).entry.card
    assert card.extra_parameters == 2  # one slope per head, shared by the layers
    assert card.encoding == "encoding.py:Mine:slope=2.0" and card.training_time > 0.5


def test_without_consent_nothing_of_an_entry_is_executed(cheat, tmp_path):
    code = (cheat / "encoding.py").read_text()
    (cheat / "encoding.py").write_text(code + f"\nopen({str(tmp_path / 'ran')!r}, 'w')\n")
    assert "it uses open" in errors(cheat)
    (cheat / "encoding.py").write_text(code)
    found = lw.check_entry(cheat)
    assert not found.errors and not found.executed and "--allow-code" in str(found)
    assert not (tmp_path / "ran").exists()


def test_the_table_is_one_of_all_entries_and_escapes_what_authors_write(cheat):
    card = yaml.safe_load((cheat / "card.yaml").read_text())
    (cheat / "card.yaml").write_text(yaml.safe_dump({**card, "title": "<script>a|b"}))
    table = lw.standings(cheat.parent)
    assert "&lt;script&gt;a\\|b" in table.markdown() and "<script>" not in table.markdown()
    assert len(table.plain()) == 2 and table.plain()[0]["unseen"]["value"] is not None


def test_submitting_again_does_no_run_again(board):
    before = {path: path.stat().st_mtime_ns for path in (board / "store" / "runs").rglob("*.safetensors")}
    where = {"root": board / "leaderboard", "store": str(board / "store"), "executor": "inline"}
    lw.submit_entry(f"{board / 'mine.py'}:Mine:slope=2.0", authors="A. Student", **where)
    assert before == {path: path.stat().st_mtime_ns for path in (board / "store" / "runs").rglob("*.safetensors")}


# --- cheating --------------------------------------------------------------------------------------------------------


def test_edited_rows_are_refused_even_with_new_checksums(cheat):
    rows = pl.read_parquet(cheat / "rows.parquet")
    better = pl.when(pl.col("split") == "test_unseen").then(pl.col("examples")).otherwise(pl.col("correct"))
    none = pl.when(pl.col("split") == "test_unseen").then(0)
    rows = rows.with_columns(
        better.alias("correct"),
        pl.when(pl.col("split") == "test_unseen")
        .then(pl.col("examples"))
        .otherwise("correct_content")
        .alias("correct_content"),
        *(none.otherwise(pl.col(name)).alias(name) for name in ("early", "late", "wrong", "cut")),
    )
    rows.write_parquet(cheat / "rows.parquet")
    assert "is damaged" in errors(cheat)
    reseal_bundle(cheat)
    assert "its single answers" in errors(cheat)
    # Also edited: the single answers. Only making a run again can find that.
    kinds = pl.read_parquet(cheat / "kinds.parquet").with_columns(
        pl.when(pl.col("split") == "test_unseen").then(pl.lit("right")).otherwise("kind").alias("kind")
    )
    kinds.write_parquet(cheat / "kinds.parquet")
    reseal_bundle(cheat)
    assert errors(cheat, execute=False) == ""
    assert "made again on the same kind of CPU" in errors(cheat, allow_code=True)


def test_rows_of_a_subgroup_that_no_task_has_are_refused(cheat):
    """Each unseen row is split into one wrong answer, as the honest run has, and an invented subgroup of right ones."""
    rows, kinds = (pl.read_parquet(cheat / name) for name in ("rows.parquet", "kinds.parquet"))
    unseen = pl.col("split") == "test_unseen"
    counts = ("examples", "correct", "correct_content", "early", "late", "wrong", "cut")
    one = {name: pl.lit(int(name in {"examples", "wrong"}), pl.Int64) for name in counts}
    rest = {name: pl.col("examples") - 1 if name in counts[:3] else pl.lit(0, pl.Int64) for name in counts}
    split = [rows.filter(unseen).with_columns(**one), rows.filter(unseen).with_columns(subgroup=pl.lit("x"), **rest)]
    pl.concat([rows.filter(~unseen), *split]).write_parquet(cheat / "rows.parquet")
    places = kinds.filter(unseen).group_by("run", "split", "length").agg(pl.col("last").max())
    ends = {"wrong": (pl.lit(0, pl.Int64), pl.lit(0, pl.Int64)), "right": (pl.lit(1, pl.Int64), pl.col("last"))}
    made = [places.with_columns(first=first, last=last, kind=pl.lit(kind)) for kind, (first, last) in ends.items()]
    pl.concat([kinds.filter(~unseen), *(table.select(kinds.columns) for table in made)]).write_parquet(
        cheat / "kinds.parquet"
    )

    def of_another_machine(one):
        one["run"]["recorded"]["cpu"] = "another"
        return one

    edit_lines(cheat, of_another_machine)
    assert "mean accuracies differ by" in errors(cheat, allow_code=True)


def test_runs_that_are_said_to_have_diverged_score_nothing(cheat):
    """Left out of the mean, the worst runs of an entry would make it better, and a whole task would vanish for all."""
    honest = {line["entry"]: line for line in lw.standings(cheat.parent).plain()}
    edit_lines(
        cheat,
        lambda one: (
            {**{key: value for key, value in one.items() if key != "done"}, "diverged": {"step": 5}}
            if one["key"].startswith("copy") and one["run"]["options"]["seed"] < 1000
            else one
        ),
    )
    rows = pl.read_parquet(cheat / "rows.parquet")
    lost = pl.col("run").str.starts_with("copy") & ~pl.col("run").str.contains("-s1000-")
    rows.filter(~lost).write_parquet(cheat / "rows.parquet")
    reseal_bundle(cheat)
    found = {line["entry"]: line for line in lw.standings(cheat.parent).plain()}
    assert found["nope"]["unseen"]["value"] == honest["nope"]["unseen"]["value"]
    (copied,) = (task for task in found["mine"]["by_task"] if task.startswith("copy"))
    assert found["mine"]["by_task"][copied] == 0
    assert found["mine"]["learned"] in {"0 of 4", "1 of 4", "2 of 4"}


def test_the_same_encoding_twice_is_one_sentence(board, tmp_path):
    shutil.copytree(board / "leaderboard" / "nope", tmp_path / "nope")
    shutil.copytree(board / "leaderboard" / "nope", tmp_path / "again")
    with pytest.raises(SpecError, match="again and nope are entries of the same encoding"):
        lw.standings(tmp_path)


def test_a_seed_left_out_is_named(cheat):
    edit_lines(cheat, lambda one: None if one["run"]["options"]["seed"] == 21 else one)
    found = errors(cheat)
    assert "seed 21 is missing" in found and "has rows, and is not among the runs" in found


def test_a_tuning_run_left_out_is_named(cheat):
    edit_lines(
        cheat,
        lambda one: (
            None if one["run"]["options"]["seed"] == 1000 and one["run"]["options"]["training"]["lr"] == 0.001 else one
        ),
    )
    assert "at lr 0.001 is missing" in errors(cheat)


def test_a_learning_rate_that_the_rule_did_not_choose_is_refused(board, cheat, tmp_path):
    tuned = {**STUDY, "base": {"training": STUDY["base"]["training"] + ":lr=0.01"}, "name": "tuned"}
    tuned["vary"] = {"encoding": [f"{board / 'mine.py'}:Mine:slope=2.0"]}
    del tuned["lr"]
    (tmp_path / "tuned.yaml").write_text(yaml.safe_dump(tuned))
    lw.Study.read(tmp_path / "tuned.yaml", allow_code=True).run(str(tmp_path / "store"), executor="inline")
    lw.export_bundle(str(tmp_path / "store"), tmp_path / "better")
    better = [json.loads(line) for line in (tmp_path / "better" / "runs.jsonl").read_text().splitlines()]
    edit_lines(cheat, lambda one: one if one["run"]["options"]["seed"] == 1000 else better.pop(0))
    rows = [pl.read_parquet(folder / "rows.parquet") for folder in (cheat, tmp_path / "better")]
    pl.concat(rows).write_parquet(cheat / "rows.parquet")
    reseal_bundle(cheat)
    assert "training has lr 0.01 instead of 0.00" in errors(cheat)


def test_validation_scores_edited_to_choose_another_rate_are_refused(cheat):
    lines = lw.check_entry(cheat, execute=False).entry.bundle.lines.values()
    (used,) = {one["run"]["options"]["training"]["lr"] for one in lines if one["run"]["options"]["seed"] == 20}

    def changed(one):
        options = one["run"]["options"]
        if options["seed"] == 1000:
            right = 0 if options["training"]["lr"] == used else 8
            one["done"]["validation"] = {"step": 3, "correct": right, "examples": 8, "loss": 1.0, "targets": 9}
        return one

    edit_lines(cheat, changed)
    assert f"training has lr {used} instead of" in errors(cheat)


def test_validation_scores_edited_to_keep_the_rate_are_found_by_making_one_again(cheat):
    def worse(one):
        if one["run"]["options"]["seed"] == 1000:
            one["done"]["validation"]["loss"] += 1.0
        return one

    edit_lines(cheat, worse)
    assert errors(cheat, execute=False) == ""
    assert "-s1000-" in errors(cheat, allow_code=True)


def test_rows_of_a_tuning_run_that_are_left_out_are_named(cheat):
    rows = pl.read_parquet(cheat / "rows.parquet")
    rows.filter(~pl.col("run").str.contains("-s1000-")).write_parquet(cheat / "rows.parquet")
    reseal_bundle(cheat)
    assert "-s1000-" in errors(cheat, execute=False)


def test_other_options_under_the_name_of_a_run_are_refused(cheat):
    def longer(one):
        one["run"]["options"]["training"]["steps"] = 600
        return one

    edit_lines(cheat, longer)
    assert "its options have another training" in errors(cheat)


def test_an_encoding_that_was_changed_afterwards_is_refused(cheat):
    code = (cheat / "encoding.py").read_text()
    (cheat / "encoding.py").write_text(code.replace("-slopes_H1", "-2 * slopes_H1"))
    assert "its encoding is not the file and the options of this entry" in errors(cheat)
    (cheat / "encoding.py").write_text("# a comment changes nothing\n" + code)
    assert errors(cheat) == ""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("import lengthwise.evaluation.result as r\nr.counts = None", "imports lengthwise.evaluation.result"),
        ("import lengthwise\nlengthwise.Encoding.bias = None", "it changes lengthwise.Encoding.bias"),
        ("import lengthwise\nlengthwise.evaluate = None", "it uses lengthwise.evaluate"),
        ("import torch\ntorch.Tensor.argmax = None", "it changes torch.Tensor.argmax"),
        ("import torch\nsetattr(torch.Tensor, 'argmax', None)", "it uses setattr"),
        ("import sys\nsys.modules['lengthwise'] = None", "it imports sys"),
        ("from os import system", "it imports from os"),
        ("from . import other", "it imports from ."),
        ("from torch import hub", "it imports from torch"),
        ("x = (lambda: 0).__globals__", "it uses .__globals__"),
        ("__builtins__['print'] = None", "it uses __builtins__"),
        ("exec('1')", "it uses exec"),
    ],
)
def test_a_file_that_reaches_beyond_its_encoding_is_refused_unread(cheat, line, words):
    with (cheat / "encoding.py").open("a") as file:
        file.write(line + "\n")
    assert words in errors(cheat)


def test_code_that_changes_lengthwise_is_found_even_if_its_source_looks_harmless(cheat, board, monkeypatch, tmp_path):
    """The check of the source is switched off here; the comparison of all functions must find it."""
    sly = tmp_path / "sly.py"
    code = (board / "mine.py").read_text()
    patch = (
        "import lengthwise.task.base\n"
        "def _lucky(self, length): return 10 ** 6\n"
        "lengthwise.task.base.Task.answer_limit = _lucky\n"
    )
    sly.write_text(
        code.replace("class Mine(Encoding)", f"{patch}class Mine(Encoding)").replace(
            "self.slope = slope", "self.slope = slope; lengthwise"
        )
    )
    before = Snapshot()
    original = lw.Task.answer_limit
    try:
        from lengthwise.loading import load_class

        load_class(str(sly), "Mine")
        assert before.changes() == ["lengthwise.task.base.Task.answer_limit"]
    finally:
        lw.Task.answer_limit = original
    assert before.changes() == []


def test_a_method_that_hides_an_inherited_one_is_found():
    before = Snapshot()
    torch.Tensor.argmax = lambda self, *_: self
    try:
        assert "torch.Tensor.argmax" in before.changes()
    finally:
        del torch.Tensor.argmax
    assert before.changes() == []


def test_the_executed_check_reports_changed_functions(cheat, monkeypatch):
    class Changed(Snapshot):
        def changes(self):
            return ["lengthwise.task.base.Task.answer_limit"]

    monkeypatch.setattr(checks, "Snapshot", Changed)
    assert "its code changes lengthwise.task.base.Task.answer_limit" in errors(cheat, allow_code=True)


NORMAL = """
import lengthwise as lw
from lengthwise.leaderboard.tampering import Snapshot

before = Snapshot()
lw.train("copy:variant=same:longest=3", "alibi", training="laptop:steps=2", store="other")
print(before.changes())
"""


def test_normal_use_changes_nothing_that_is_noted(tmp_path):
    """In a fresh process, where PyTorch has not yet put its own hooks into classes."""
    ended = subprocess.run([sys.executable, "-c", NORMAL], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and ended.stdout.splitlines()[-1] == "[]", ended.stdout + ended.stderr


def test_a_wrong_number_of_parameters_is_refused(cheat):
    card = yaml.safe_load((cheat / "card.yaml").read_text())
    (cheat / "card.yaml").write_text(yaml.safe_dump({**card, "extra_parameters": 0}))
    assert "extra_parameters is 0, and the model has 2" in errors(cheat, allow_code=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"variants_tried": 0}, "variants_tried"),
        ({"link": "javascript:alert(1)"}, "a link begins with https://"),
        ({"encoding": "../other.py:Mine"}, "encoding.py:Class"),
        ({"encoding": "os:path"}, "encoding.py:Class"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_card_is_one_sentence(cheat, change, words):
    card = yaml.safe_load((cheat / "card.yaml").read_text())
    (cheat / "card.yaml").write_text(yaml.safe_dump({**card, **change}))
    assert words in errors(cheat)


def test_a_wrong_link_is_one_sentence_before_anything_is_run(tmp_path):
    with pytest.raises(SpecError, match=r"the card: link: .*a link begins with https://"):
        lw.submit_entry("nope", authors="A", link="javascript:alert(1)", root=tmp_path, executor="inline")
    assert not list(tmp_path.iterdir())


def test_files_that_do_not_belong_are_refused(cheat):
    (cheat / "helper.py").write_text("")
    (cheat / "link").symlink_to("/etc/hosts")
    found = errors(cheat)
    assert "helper.py is no file of an entry" in found and "link is a link" in found


def test_a_failing_encoding_is_not_trained(tmp_path):
    lw.write_template("encoding", "mine", tmp_path)
    code = (
        (tmp_path / "mine.py").read_text().replace("distances_N.abs()", "distances_N.abs() + distances_N.abs().mean()")
    )
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(SpecError, match="does not conform"):
        lw.submit_entry(f"{tmp_path / 'mine.py'}:Mine", authors="A", root=tmp_path / "board", executor="inline")


def test_every_encoding_of_the_package_could_be_a_file_of_an_entry(board):
    """What our own encodings import is what an entry may import, with few exceptions."""
    folder = Path(lw.__file__).parent / "encoding"
    refused = {path.stem for path in folder.glob("*.py") if source.source_mistakes(path)}
    assert {"alibi", "rope", "t5", "fire", "kerple", "shaw", "cope", "sinusoidal"} & refused == set()

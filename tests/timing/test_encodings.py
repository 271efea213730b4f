"""`lengthwise bench encodings`: turns, ratios, memory, and cases that would not end."""

import json
import subprocess
import sys
from dataclasses import fields

import pytest
from typer.testing import CliRunner

from lengthwise.cli import app
from lengthwise.model import preset
from lengthwise.spec import Spec, SpecError
from lengthwise.timing import encodings as bench
from lengthwise.timing.alone import CallCost, run_in_new_process
from lengthwise.timing.encodings import Row, time_encodings
from lengthwise.timing.work import Setting

CONFIG = preset("laptop", vocabulary=32)
SECONDS = {"nope": 0.1, "rope": 0.2, "t5": 0.5, "alibi": 0.05}


@pytest.fixture
def turns(monkeypatch):
    """Measurements without a machine: each encoding takes its seconds, and twice them in the second round."""
    order = []

    class Fake:
        def __init__(self, asked):
            self.at, self.calls = (str(asked.encoding), asked.what, asked.length), 0

        def __call__(self):
            self.calls += 1
            order.append(self.at[0])
            return SECONDS[self.at[0]] * (2 if self.calls == 3 else 1)

    monkeypatch.setattr(bench, "Work", Fake)
    monkeypatch.setattr(bench, "WHAT", ("forward",))
    monkeypatch.setattr(
        bench,
        "run_in_new_process",
        lambda setting, *rest: CallCost(SECONDS[str(setting.encoding)], 10 * SECONDS[str(setting.encoding)]),
    )
    return order


def test_rounds_are_interleaved_and_ratios_are_those_of_a_round(turns, monkeypatch):
    monkeypatch.setattr(bench, "SMALLEST", 0.5)
    rows = time_encodings(CONFIG, [Spec("t5"), Spec("rope")], [16], rounds=3)
    assert turns == [*["nope", "t5", "rope"] * 2, "rope", "t5", "nope", "nope", "t5", "rope"]
    assert [row.encoding for row in rows] == ["nope", "t5", "rope"]  # nope although it was not asked for
    # The second round was slow for all: ratios are those of the round, times the median of rounds.
    assert [row.ratio for row in rows] == [1.0, 5.0, 2.0]
    assert [(row.ratio_low, row.ratio_high) for row in rows] == [(1.0, 1.0), (5.0, 5.0), (2.0, 2.0)]
    assert [row.ms for row in rows] == [100.0, 500.0, 200.0]
    assert [row.peak_ratio for row in rows] == [1.0, 5.0, 2.0]


def test_what_is_quick_is_done_several_times_and_what_is_slow_not_at_all(turns, monkeypatch):
    monkeypatch.setitem(SECONDS, "nope", 0.005)
    rows = {
        row.encoding: row
        for row in time_encodings(CONFIG, [Spec("t5"), Spec("alibi")], [16], rounds=2, seconds_limit=1.0)
    }
    assert turns.count("nope") == turns.count("alibi") == 1 + 2 * 4  # 4 × 5 ms in each round
    assert "t5" not in turns
    assert rows["t5"].ms is None and rows["t5"].ratio is None and rows["t5"].rounds == 0
    assert rows["t5"].skipped == "3 calls of about 0.5 s are more than the limit, 1 s"
    assert rows["t5"].peak_mib == 5.0
    turns.clear()
    rows = {row.encoding: row for row in time_encodings(CONFIG, [Spec("alibi")], [16], rounds=2, seconds_limit=0.01)}
    assert turns == []
    assert rows["alibi"].skipped.startswith("3 calls of about 0.05 s")


def test_models_that_do_not_fit_together_take_turns_with_nope(turns, monkeypatch):
    monkeypatch.setattr(bench, "TOGETHER", 1)
    time_encodings(CONFIG, [Spec("t5"), Spec("rope")], [16], rounds=1)
    assert turns == ["nope", "t5"] * 2 + ["nope", "rope"] * 2


@pytest.mark.parametrize(
    "wrong",
    [{"batch_size": 0}, {"rounds": 0}, {"threads": 0}, {"seconds_limit": 0.0}, {"lengths": []}, {"lengths": [1]}],
)
def test_what_cannot_be_measured_is_refused(wrong):
    with pytest.raises(SpecError, match=r"not"):
        time_encodings(CONFIG, [], **{"lengths": [8], **wrong})


@pytest.mark.slow
def test_the_peak_is_that_of_the_call_alone(figure):
    held = bytearray(2**27)  # what we hold is not inherited
    flat, square = (
        run_in_new_process(Setting(CONFIG, Spec(name), "forward", 1024, 1), 1, 60.0) for name in ("nope", "t5")
    )
    figure(f"peak of a forward pass at 1,024 tokens: nope {flat.peak_mib:.0f} MiB, t5 {square.peak_mib:.0f} MiB")
    assert 0 < flat.peak_mib < 16 < square.peak_mib < len(held) / 2**20  # t5: 4 heads × 1024² × 4 bytes
    assert flat.seconds > 0


@pytest.mark.slow
def test_what_does_not_end_or_dies_is_said(tmp_path):
    assert (
        run_in_new_process(Setting(CONFIG, Spec("nope"), "train", 4096, 4), 1, 0.05).failed == "not done after 0.05 s"
    )
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from lengthwise.encoding.base import Encoding\n"
        "class Mine(Encoding):\n    def embed(self, x, positions):\n"
        "        raise TypeError('no such thing,\\non two lines')\n"
    )
    told = run_in_new_process(Setting(CONFIG, Spec(f"{mine}:Mine"), "forward", 16, 1), 1, 60.0).failed
    assert told == "TypeError: no such thing, on two lines"
    assert (
        "past the last one"
        in run_in_new_process(Setting(CONFIG, Spec.of("learned:limit=8"), "forward", 16, 1), 1, 60.0).failed
    )
    (tmp_path / "my_pe.py").write_text(
        "import os\nfrom lengthwise.encoding.base import Encoding\n"
        "class Fatal(Encoding):\n    def embed(self, x, positions):\n        os._exit(3)\n"
    )
    dead = run_in_new_process(Setting(CONFIG, Spec(f"{tmp_path}/my_pe.py:Fatal"), "forward", 16, 1), 1, 60.0)
    assert dead.failed == "its process ended (exit code 3): out of memory?"


@pytest.mark.slow
def test_the_command_prints_json_where_it_is_asked_for():
    asked = ["bench", "encodings", "--encodings", "rope,learned:limit=20", "--lengths", "8,24", "--repeat", "2"]
    done = CliRunner().invoke(app, [*asked, "--batch", "1", "--json"], env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert set(told) == {
        *("bench", "cpu", "torch", "load", "device", "device_name"),
        *("model", "batch", "repeat", "threads", "dtype", "rows"),
    }
    assert len(told["rows"]) == 3 * 2 * 3
    for row in told["rows"]:
        assert set(row) == {field.name for field in fields(Row)}
        assert row["what"] in {"train", "forward", "generate"}
        if (row["encoding"], row["length"]) == ("learned:limit=20", 24):
            assert row["ratio"] is None and "past the last one" in row["skipped"]
            continue
        assert row["skipped"] is None
        assert row["ms"] > 0 and row["ratio_low"] <= row["ratio"] <= row["ratio_high"] and row["rounds"] == 2
        assert row["encoding"] != "nope" or row["ratio"] == 1
    plain = [
        "bench",
        "encodings",
        "--encodings",
        "learned:limit=20",
        "--lengths",
        "24",
        "--repeat",
        "1",
        "--batch",
        "1",
    ]
    shown = CliRunner().invoke(app, plain, env={"COLUMNS": "160"})
    assert "skipped: learned:limit=20, train at 24: position 23 is past the last one" in shown.stdout
    assert shown.stdout.startswith("training step\nencoding") and "{" not in shown.stdout


def test_mistakes_on_the_command_line_are_told():
    for arguments, message in ((["--lengths", "8,x"], "lengths are written 8,16,32"), (["--encodings", "rop"], "rope")):
        done = CliRunner().invoke(app, ["bench", "encodings", *arguments])
        assert isinstance(done.exception, SpecError)
        assert message in str(done.exception)


@pytest.mark.slow
def test_a_script_without_a_guard_is_not_run_again_to_measure_memory(tmp_path):
    (tmp_path / "script.py").write_text(
        "import lengthwise as lw\n"
        "print('begins')\n"
        "rows = lw.bench('rope', [16], repeat=1, batch=1).rows\n"
        "print([row.peak_mib is not None for row in rows], [row.skipped for row in rows])\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "RuntimeError" not in done.stderr, done.stderr
    assert done.stdout.count("begins") == 1 and "False" not in done.stdout, done.stdout

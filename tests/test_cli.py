"""The command line as a user meets it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lengthwise.encoding import ENCODINGS
from lengthwise.task import TASKS
from tests.run.test_cli_runs import cli

COMMAND = [sys.executable, "-m", "lengthwise"]


def run(*arguments: str, cwd=".") -> subprocess.CompletedProcess[str]:
    return cli(*arguments, cwd=cwd, columns="160")


@pytest.mark.slow
def test_help_is_quick_and_imports_no_torch(figure):
    seconds = []
    for _ in range(5):
        before = os.times()
        assert subprocess.run([*COMMAND, "--help"], capture_output=True, check=False).returncode == 0
        after = os.times()  # of this process's children: time on a core, which a busy machine hardly changes
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    figure(f"lengthwise --help: {min(seconds):.2f} s of a core")
    assert min(seconds) < 0.6
    code = "import sys, lengthwise.cli as c\ntry: c.app(['--help'])\nfinally: sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_a_report_needs_neither_torch_nor_scipys_statistics(tmp_path):
    """Each takes about as long to import as all the rest of a report."""
    code = (
        "import sys, lengthwise as lw; lw.Study.read('quickstart').report('page', store='none'); "
        "sys.exit(' '.join({'torch', 'scipy.stats'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page" / "index.html").stat().st_size > 10_000


@pytest.mark.slow
def test_every_verb_is_in_one_panel_and_no_help_is_cut():
    """In a terminal of 80 columns, each verb's first sentence fits; a verb that is in no panel would not be listed."""
    from typer.main import get_command

    from lengthwise.cli.terminal import PANELS, app

    verbs = get_command(app).commands
    assert sorted(name for names in PANELS.values() for name in names) == sorted(verbs)
    environment = {**os.environ, "COLUMNS": "80"}
    for group in ([], ["study"], ["theory"], ["bench"]):
        told = subprocess.run([*COMMAND, *group, "--help"], capture_output=True, text=True, env=environment, check=True)
        assert "..." not in told.stdout.replace("[ARGS]...", ""), told.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("published", "--figure", "1"),
        ("study", "report", "quickstart"),
        ("theory", "variance", "--width", "48", "--tokens", "8", "--draws", "2"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_what_is_written_without_to_has_a_folder_of_its_own(command, tmp_path):
    done = run(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["lengthwise-output"]
    assert list((tmp_path / "lengthwise-output").iterdir())
    assert "lengthwise-output/" in (Path(__file__).parents[1] / ".gitignore").read_text().splitlines()


@pytest.mark.parametrize("command", ["show", "audit"])
def test_a_name_that_is_too_long_for_a_file_is_one_line(command, tmp_path):
    done = run(command, "x" * 300, cwd=tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.endswith("xxx… is too long for the name of a file\n")


@pytest.mark.parametrize(
    ("redirection", "code", "told"),
    [("| head -1", 0, ""), (">&-", 0, ""), ("> /dev/full", 1, "the output cannot be written: No space left on device")],
)
def test_output_that_goes_nowhere_is_no_traceback(redirection, code, told):
    command = f"{sys.executable} -m lengthwise list tasks {redirection}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == code and told in done.stderr and len(done.stderr.splitlines()) <= 1, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("method", ["__del__", "__set_name__"])
def test_ctrl_c_where_python_hides_it_still_stops(method):
    """It prints and then ignores an exception in one method, and wraps it in another one in the other."""
    code = f"""
import time
import lengthwise.cli as cli
class Interrupted:
    def {method}(self, *arguments):
        raise KeyboardInterrupt
def app():
    one = Interrupted()
    made = type("Made", (), dict(one=one)) if {method == "__set_name__"} else None
    del one
    time.sleep(20)
cli.app = app
cli.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    assert (done.returncode, done.stderr) == (130, "lengthwise: stopped\n")


@pytest.mark.parametrize("seconds", [0.2, 0.4, 0.7])
def test_ctrl_c_at_the_beginning_is_no_traceback(seconds):
    process = subprocess.Popen(
        [*COMMAND, "list", "encodings"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=30)[1]
    assert process.returncode in {0, 130, -signal.SIGINT} and "Traceback" not in told, told


def test_version():
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("lengthwise 0.")


def test_encodings_are_listed_with_where_they_act_parameters_claims_and_paper():
    rows = {row["name"]: row for row in json.loads(run("list", "encodings", "--json").stdout)}
    assert list(rows) == list(ENCODINGS)
    assert rows["t5"]["acts on"] == ["bias"]
    assert rows["t5"]["parameters"] == 384
    assert rows["learned"]["claims"]["limit"] == 2048
    assert rows["sinusoidal"]["claims"]["relative"] is False
    assert rows["rope"]["options"]["theta"] == 10000.0
    assert all(row["paper"] for row in rows.values()) and "arXiv:" in rows["rope"]["paper"]
    text = run("list", "encodings").stdout
    assert all(name in text for name in rows)
    assert "queries and keys" in text


@pytest.mark.parametrize("what", ["positions", "presets", "checks"])
def test_the_other_lists_are_printed_too(what):
    assert run("list", what).returncode == 0
    assert json.loads(run("list", what, "--json").stdout)


def test_tasks_are_listed_with_an_example_their_unit_and_their_options():
    rows = {row["name"]: row for row in json.loads(run("list", "tasks", "--json").stdout)}
    assert list(rows) == list(TASKS)
    assert rows["addition"]["example"] == "9 6 4 + 5 8 = → 1 0 2 2"
    assert rows["scan"]["length"] == "actions"
    assert rows["copy"]["options"]["variant"] == "random"
    assert rows["count"]["protocols"] == ["ours"]
    text = run("list", "tasks").stdout
    assert "walk after turn right" in text
    assert "every task also takes: protocol=ours (or paper, where listed), tokenizer=FOLDER, bos=true or false" in text


def test_show_prints_examples_a_person_can_read():
    text = run("show", "addition", "--length", "3", "--protocol", "paper", "--scratchpad", "full").stdout
    assert "addition:protocol=paper:scratchpad=full, train, length 3 (digits)" in text
    assert "Compute 5 6 1 + 8 ?" in text
    assert "Thinking step by step: in 1, 8 comp 1 + 8 + carry" in text
    told = json.loads(
        run("show", "copy:variant=same", "--examples", "2", "--split", "test_far", "--length", "50", "--json").stdout
    )
    assert [len(one["answer"].split()) for one in told["examples"]] == [50, 50]
    assert len(told["examples"][0]["ids"]) == 1 + 51 + 50 + 1


def test_prompt_steps_and_answer_are_coloured_apart(tmp_path):
    """In a terminal: each of the three has a colour of its own."""
    code = (
        "import rich.console as c; w = c.Console.__init__\n"
        "c.Console.__init__ = lambda self, **k: w(self, **{**k, 'force_terminal': True, 'color_system': 'standard'})\n"
        "import sys; sys.argv = ['lengthwise', 'show', 'parity', '--length', '3', '--scratchpad', 'full']\n"
        "from lengthwise.cli import main; main()"
    )
    environment = {key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "TERM"}}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    for colour in ("\x1b[36m", "\x1b[33m", "\x1b[1;32m"):
        assert colour in done.stdout


def test_audit_counts_the_scan_corpus():
    told = json.loads(run("audit", "scan", "--protocol", "paper", "--json").stdout)
    assert (told["facts"]["pairs"], told["facts"]["up to 25"], told["facts"]["beyond 25"]) == (20910, 17774, 3136)
    assert told["facts"]["histogram"]["10"] == 1696
    sizes = {
        split: sum(row["examples"] for row in told["lines"] if row["split"] == split)
        for split in ("train", "validation", "test_unseen")
    }
    assert sizes == {"train": 15997, "validation": 1777, "test_unseen": 3136}


@pytest.mark.slow
def test_audit_prints_overlap_exhausted_lengths_chance_and_deviations():
    ours = run("audit", "parity").stdout
    assert "overlap of train and test_seen: 0 of 52 examples" in ours
    assert "test_seen 1, 2, 3, 4, 5, 6" in ours
    paper = run("audit", "copy:variant=random", "--protocol", "paper").stdout
    assert "overlap of train and validation: " in paper
    assert "deviation: symbols beyond the 78 ASCII ones are numbered words" in paper
    assert "0.99^n" in paper


WRONG = """
from dataclasses import dataclass
from lengthwise.task.parity import Parity
@dataclass(frozen=True, kw_only=True)
class Mine(Parity):
    def chance(self, length):
        return 0.1
    def is_correct(self, instance, answer):
        return not super().is_correct(instance, answer)
"""


@pytest.mark.slow
def test_audit_names_missing_lengths():
    text = run("audit", "addition:hints=9").stdout
    assert "missing in test_unseen: all lengths, 9–16" in text
    assert "missing in test_far: all lengths, 20, 24, 32" in text
    assert "missing in test_unseen: length 29, 31, 34–35, 37–39" in run("audit", "scan").stdout


@pytest.mark.slow
def test_audit_finds_a_task_that_contradicts_itself(tmp_path):
    (tmp_path / "mine.py").write_text(WRONG)
    done = run("audit", "mine.py:Mine", cwd=tmp_path)
    assert done.returncode == 1
    assert re.search(r"problem: train, length 5: check refuses (\d+) of \1 answers that to_example gives", done.stdout)
    assert "but chance(7) is 0.1" in done.stdout


@pytest.mark.slow
def test_export_is_read_by_hugging_face_datasets(tmp_path):
    datasets = pytest.importorskip("datasets")
    done = run("export", "addition", "--to", "there", "--examples", "200", "--scratchpad", "minimal", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    read = datasets.load_dataset(str(tmp_path / "there"), cache_dir=str(tmp_path / "cache"))
    assert set(read) == {"train", "validation", "dev_unseen", "test_seen", "test_unseen", "test_far"}
    assert len(read["train"]) == 200
    assert read["test_unseen"][0]["length"] == 9
    row = read["train"][0]
    assert len(row["ids"]) == row["prompt_tokens"] + row["answer_tokens"]
    assert row["steps"].endswith("Thus,")
    assert "is not empty" in run("export", "addition", "--to", "there", cwd=tmp_path).stderr


def test_lengths_draws_anybodys_corpus(tmp_path):
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": "w " * n}) + "\n" for n in range(1, 101)))
    text = run("lengths", "c.jsonl", "--trained", "90", "--figure", "c.svg", cwd=tmp_path).stdout
    assert "100 documents" in text
    assert "50 % 50" in text
    assert "longer than 90: 10.0%" in text
    assert (tmp_path / "c.svg").read_text().startswith("<?xml")
    told = json.loads(run("lengths", "c.jsonl", "--json", cwd=tmp_path).stdout)
    assert told["quantiles"]["p50"] == 50


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "revers"], "unknown task 'revers'. Did you mean 'reverse'?"),
        (["show", "copy:varian=same"], "Did you mean 'variant'?"),
        (["show", "copy", "--scratchpad", "full"], "task 'copy' has no option 'scratchpad'"),
        (["show", "scan", "--length", "23"], "scan has no length 23 (actions); the nearest is 22"),
        (["show", "copy", "--split", "test_seen", "--length", "21"], "'test_seen' of copy has no length 21"),
        (["show", "addition", "--protocol", "paper", "--length", "12"], "'train' of addition has no length 12"),
        (
            ["show", "copy:variant=replace", "--protocol", "paper", "--length", "5", "--examples", "6010"],
            "there is no example 6006 of copy",
        ),
        (["show", "copy", "--split", "tset_seen"], "Did you mean 'test_seen'?"),
        (["show", "copy:protocol=paper", "--protocol", "ours"], "protocol is given twice"),
        (["show", "copy", "--protocol", "papr"], "option 'protocol' of task 'copy' cannot be 'papr'"),
        (["audit", "count", "--protocol", "paper"], "count is not in the original study"),
        (["show", "addition:reversed"], "option 'reversed' of task 'addition' has no value; write addition:reversed="),
        (["show", "addition:"], "'addition:' ends in a colon; write addition alone, or addition:option=value"),
        (["show", "zzz"], "sort, summation, text."),
        (["show", "addition:spaces=-1"], "a probability from 0 to below 1, not -1.0"),
        (["show", "flipflop:ignore=-1"], "a probability from 0 to below 1, not -1.0"),
        (["show", "parity", "--tokenizer", "/nope"], "there is no folder '/nope'"),
        (["show", "recall:queries=100"], "recall cannot ask 100 of 16 pairs"),
        (["show", "scan:longest=23"], "scan has no length 23 (actions) to train up to; write longest=22"),
        (["lengths", "table.csv"], "write it as parquet or JSON lines"),
        (["verify", "rope", "--positions", "coupled"], "so they need a task"),
        (["show", "copy:alphabet=1000000000"], "option 'alphabet' of task 'copy' is at most 10,000,000"),
        (["show", "recall:values=9223372036854775808"], "option 'values' of task 'recall' is at most 10,000,000"),
        (
            ["train", "copy", "--positions", "randomized:limit=2147483648"],
            "'limit' of positions 'randomized' is at most",
        ),
        (
            ["train", "copy", "--positions", "given:values=[1,99999999999]"],
            "'values' of positions 'given' is at most",
        ),
        (["train", "copy", "--training", "laptop:lr=1e999"], "cannot be inf: Input should be a finite number"),
        (["train", "copy", "--stream", "order=²"], "a stream is written name=seed"),
        (["train", "copy", "--stream", "order=" + "9" * 5000], "a stream is written name=seed"),
        (["describe", "laptop:layers=100000000"], "cannot be 100000000: Input should be less than or equal to 1024"),
        (["describe", "laptop:width=1000000000"], "Input should be less than or equal to 65536"),
        (["cite", "pcfg:longest=*"], "option 'longest' of task 'pcfg' cannot be '*'"),
    ],
)
def test_mistakes_about_tasks_are_one_line(arguments, said):
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_verify_prints_a_table_and_json_and_its_exit_code_is_the_verdict(tmp_path):
    (tmp_path / "my_pe.py").write_text(GOOD)
    (tmp_path / "bad_pe.py").write_text(GOOD.replace("-distances_N.abs()", "(0 * distances_N)"))
    good = run("verify", "my_pe.py:Mine", cwd=tmp_path)
    assert good.returncode == 0, good.stderr
    assert "my_pe.py:Mine conforms: " in good.stdout
    bad = run("verify", "bad_pe.py:Mine", cwd=tmp_path)
    assert bad.returncode == 1
    assert "does NOT conform" in bad.stdout
    both = json.loads(run("verify", "my_pe.py:Mine,rope", "--json", "--only", "T05,T08", cwd=tmp_path).stdout)
    assert [report["encoding"] for report in both] == ["my_pe.py:Mine", "rope"]
    assert all(report["passed"] for report in both)


GOOD = """
from lengthwise.encoding.base import Encoding

class Mine(Encoding):
    def by_distance(self, distances_N):
        return -distances_N.abs().expand(self.geometry.heads, -1)
"""


@pytest.mark.slow
def test_a_few_checks_are_not_called_conformance():
    asked = run("verify", "rope", "--only", "t5", "--only", "T14 T12")
    assert "rope passes: 2 passed, 0 failed, 0 not applicable (of 37 checks, 2 asked for)" in asked.stdout


@pytest.mark.slow
def test_a_terminal_without_unicode_still_gets_its_answer():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    command = [*COMMAND, "verify", "rope", "--only", "T05"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def test_describe_counts_parameters_and_prints_the_initial_scale():
    told = json.loads(
        run("describe", "laptop:layers=3", "--encoding", "sinusoidal", "--vocabulary", "20", "--json").stdout
    )
    assert told["layers"] == 3
    assert told["sigma"] == pytest.approx(0.0693, rel=1e-3)
    assert told["position_ratio"] == pytest.approx(0.707, rel=0.1)
    assert "position_ratio" in run("describe", "laptop", "--encoding", "nope,rope").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["verify", "ropee"], "unknown encoding 'ropee'. Did you mean 'rope'?"),
        (["verify", "rope:tehta=1"], "has no option 'tehta'. Did you mean 'theta'?"),
        (["verify", "rope", "--positions", "random"], "unknown positions 'random'"),
        (["verify", "rope", "--only", "T99"], "there is no check 'T99'"),
        (["verify", "gone.py:Mine"], "there is no file 'gone.py'"),
        (["verify", ""], "name an encoding"),
        (["list", "encoding"], "there is no list of 'encoding'. Did you mean 'encodings'?"),
        (["describe", "laptp"], "unknown preset 'laptp'. Did you mean 'laptop'?"),
        (["describe", "laptop:vocabulary=5", "--vocabulary", "7"], "the vocabulary is given twice"),
        (["describe", "laptop:width=x"], "option 'width' of preset 'laptop' cannot be 'x'"),
        (["describe", "laptop", "--encoding", "rope,nope,rope"], "2 layers, but 3 entries"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(arguments, said):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("lengthwise: error: ")
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr + done.stdout

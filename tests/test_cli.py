"""The command line as a user meets it."""

import json
import os
import subprocess
import sys
import time

import pytest

COMMAND = [sys.executable, "-m", "lengthwise"]


def run(*arguments: str, cwd=None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "160"}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, cwd=cwd, env=environment)


def test_help_is_quick_and_imports_no_torch(figure):
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        assert run("--help").returncode == 0
        seconds.append(time.perf_counter() - start)
    figure(f"lengthwise --help: {min(seconds):.2f} s")
    assert min(seconds) < 0.6
    code = "import sys, lengthwise.cli as c\ntry: c.app(['--help'])\nfinally: sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_version():
    assert run("--version").stdout.startswith("lengthwise 0.")


def test_encodings_are_listed_with_where_they_act_parameters_claims_and_paper():
    rows = {row["name"]: row for row in json.loads(run("list", "encodings", "--json").stdout)}
    assert list(rows) == ["nope", "sinusoidal", "learned", "t5", "alibi", "rope"]
    assert rows["t5"]["acts on"] == ["bias"]
    assert rows["t5"]["parameters"] == 384
    assert rows["learned"]["claims"]["limit"] == 2048
    assert rows["sinusoidal"]["claims"]["relative"] is False
    assert rows["rope"]["options"]["theta"] == 10000.0
    assert all("arXiv:" in row["paper"] for row in rows.values())
    text = run("list", "encodings").stdout
    assert all(name in text for name in rows)
    assert "queries and keys" in text


@pytest.mark.parametrize("what", ["positions", "presets", "checks"])
def test_the_other_lists_are_printed_too(what):
    assert run("list", what).returncode == 0
    assert json.loads(run("list", what, "--json").stdout)


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
from lengthwise.encodings.encoding import Encoding

class Mine(Encoding):
    def by_distance(self, distances_N):
        return -distances_N.abs().expand(self.geometry.heads, -1)
"""


def test_a_few_checks_are_not_called_conformance():
    asked = run("verify", "rope", "--only", "t5", "--only", "T14 T12")
    assert "rope passes: 2 passed, 0 failed, 0 not applicable (of 32 checks, 2 asked for)" in asked.stdout


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

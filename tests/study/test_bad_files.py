"""Study files that are wrong: every mistake at once, a line for each, its place and what to write; no code is run."""

import io
import os
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lengthwise.cli import main
from lengthwise.spec import SpecError
from lengthwise.study.check import check
from lengthwise.study.file import RUNS, StudyFile
from lengthwise.study.plan import Planned

GOOD = """name: good
question: Does it work?
base:
  task: copy:variant=same:longest=4
  encoding: rope
seeds: 2
"""
MARK = "from pathlib import Path\n\n\nclass Evil:\n    Path({where!r}).write_text('imported')\n"


def cli(*arguments, cwd):
    """The command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    before, argv = Path.cwd(), sys.argv
    try:
        os.chdir(cwd)
        sys.argv = ["lengthwise", *arguments]
        with redirect_stdout(out), redirect_stderr(err):
            try:
                main()
                code = 0
            except SystemExit as left:
                code = left.code or 0
    finally:
        os.chdir(before)
        sys.argv = argv
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def told(done):
    """The lines of a refusal, without what each begins with."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert not done.stdout and "Traceback" not in done.stderr
    assert done.stderr.startswith("lengthwise: error: ")
    lines = done.stderr.strip().split("\n")
    assert all(line.strip() and line.isprintable() and len(line) < 800 for line in lines)
    return [line.removeprefix("lengthwise: error: ").removeprefix("bad.yaml: ") for line in lines]


def with_(**fields):
    """A sound study, but for these fields; one that is None is left out."""
    content = {**yaml.safe_load(GOOD), **fields}
    return yaml.safe_dump({key: value for key, value in content.items() if value is not None}, sort_keys=False)


def varied(encodings, **fields):
    return with_(base={"task": "copy:variant=same:longest=4"}, vary={"encoding": encodings}, **fields)


def based(**fields):
    return with_(base={"task": "copy:variant=same:longest=4", "encoding": "rope", **fields})


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)

CASES = {
    # --- unknown fields, at each level
    "unknown field": (with_(sedes=3), ["sedes: there is no such field. Did you mean 'seeds'?"]),
    "unknown field that begins like a type": (with_(interval=3), ["interval: there is no such field."]),
    "unknown in base": (based(modle="laptop"), ["base.modle: there is no such field. Did you mean 'model'?"]),
    "unknown in vary": (
        with_(base={"encoding": "rope"}, vary={"tsk": ["copy"]}),
        ["vary.tsk: there is no such field. Did you mean 'task'?"],
    ),
    "an old name": (with_(pair=[{"task": "copy"}]), ["pair: there is no such field. It is called 'linked' now."]),
    "unknown in linked": (
        with_(linked=[{"task": "copy", "seed": 1}]),
        ["linked.0.seed: there is no such field. Did you mean 'seeds'?"],
    ),
    "unknown in rate": (
        with_(lr={"chose": [0.1, 0.2]}),
        ["lr.chose: there is no such field. Did you mean 'choose'?"],
    ),
    "unknown in evaluations": (
        with_(evaluations=[{"length": "8"}]),
        ["evaluations.0.length: there is no such field. Did you mean 'lengths'?"],
    ),
    "unknown in resources": (
        with_(resources={"cpu": 1}),
        ["resources.cpu: there is no such field. Did you mean 'cpus'?"],
    ),
    # --- missing
    "no name": (with_(name=None), ["name: is missing"]),
    "no question": (with_(question=None), ["question: is missing"]),
    "no task": (with_(base={"encoding": "rope"}), ["no task is named: put it into base, vary or linked"]),
    "no encoding": (with_(base={"task": "copy"}), ["no encoding is named: put it into base, vary or linked"]),
    "neither": (with_(base=None), ["no task is named", "no encoding is named"]),
    "a pair without a task": (
        with_(base={"encoding": "rope"}, linked=[{"task": "copy"}, {"training": "laptop:steps=3"}]),
        ["linked.1 has no task, and base has none"],
    ),
    # --- names
    "capitals": (with_(name="Good"), ["name: write lower-case letters, digits, - and _, a letter first"]),
    "a path as name": (with_(name="../good"), ["name: write lower-case letters"]),
    "a long name": (with_(name="a" * 65), ["at most 64, not 'aaaa"]),
    "an empty question": (with_(question=""), ["question: write some words, not ''"]),
    "an endless question": (with_(question="x" * 200_000), ["question: write fewer words, not 'xxxx"]),
    "an endless encoding": (based(encoding="x" * 200_000), ["base.encoding: a name is 1 to 4000 characters"]),
    "an endless field": (with_(**{"x" * 200_000: 1}), ["there is no such field."]),
    # --- wrong types
    "base is a list": (with_(base=["copy"]), ["base: write fields below it, or leave it out, not \"['copy']\""]),
    "base is empty": (GOOD + "vary:\n", ["vary: write fields below it, or leave it out, not 'null'"]),
    "vary is a word": (with_(base={"task": "copy"}, vary={"encoding": "rope"}), ["vary.encoding: write a list, e.g."]),
    "vary is empty": (varied([]), ["vary.encoding: the list has too few entries, not '[]'"]),
    "a number as encoding": (based(encoding=3), ["base.encoding: write a name, e.g. rope:fraction=0.25, not '3'"]),
    "a list of lists": (based(encoding=[["rope"]]), ["base.encoding: a list of encodings has one name for each layer"]),
    "a mapping without name": (based(encoding={"fraction": 0.5}), ["base.encoding: a mapping needs a 'name'"]),
    "a number as question": (with_(question=3), ["question: write text; what YAML would read otherwise stands in"]),
    "half a step": (with_(checkpoint_every=1.5), ["checkpoint_every: write a whole number, not '1.5'"]),
    "lengths as a number": (with_(evaluations=[{"lengths": 8}]), ["stands in quotes, e.g. \"8\", not '8'"]),
    "a colon in an option": (
        based(encoding={"name": "rope", "fraction": "1:theta=3"}),
        ["base.encoding: 'rope:fraction=1:theta=3' would be read as something else"],
    ),
    "a comma in an option": (
        based(encoding={"name": "rope", "fraction": "1,nope"}),
        ["base.encoding: 'rope:fraction=1,nope' would be read as something else"],
    ),
    # --- seeds
    "a negative seed": (with_(seeds=[0, -1]), ["seeds: write how many, 1 to 1000, or a list of up to 1000 whole"]),
    "no seeds": (with_(seeds=0), ["seeds: write how many, 1 to 1000"]),
    "no seed": (with_(seeds=[]), ["seeds: write how many, 1 to 1000"]),
    "a seed twice": (with_(seeds=[1, 2, 1, 2]), ["seeds: 1 is listed twice", "seeds: 2 is listed twice"]),
    "true seeds": (with_(seeds=True), ["whole numbers from 0, not 'true'"]),
    "a true seed": (with_(seeds=[True]), ["whole numbers from 0, not '[True]'"]),
    "seeds as a word": (with_(seeds="three"), ["whole numbers from 0, not 'three'"]),
    "too many seeds": (with_(seeds=1001), ["seeds: write how many, 1 to 1000"]),
    "too many listed seeds": (with_(seeds=list(range(1001))), ["seeds: write how many, 1 to 1000"]),
    "an enormous seed": (with_(seeds=[2**31]), ["whole numbers from 0, not '[2147483648]'"]),
    "the tuning seed": (with_(seeds=[0, 1000], lr={}), ["seeds: 1000 is a tuning seed, which no run may use"]),
    "more seeds in a pair": (
        with_(linked=[{"training": "laptop:steps=3", "seeds": 5}]),
        ["linked.0.seeds: the study has 2 seeds, not 5; write fewer"],
    ),
    # --- what varies
    "in vary and pair": (
        with_(base={"encoding": "rope"}, vary={"task": ["copy"]}, linked=[{"task": "sort"}]),
        ["task is in vary and in linked; it can be in one of them"],
    ),
    "in base and vary": (
        with_(vary={"encoding": ["nope", "t5"]}),
        ["encoding is in base and in vary, where base.encoding would be ignored"],
    ),
    "an encoding twice": (varied(["rope", "nope", "rope"]), ["vary: encoding 'rope' is listed twice"]),
    "an encoding twice, once as a mapping": (
        varied([{"name": "rope", "fraction": 0.5}, "rope:fraction=0.5"]),
        ["vary: encoding 'rope:fraction=0.5' is listed twice"],
    ),
    "a pair twice": (
        with_(linked=[{"training": "laptop"}, {"training": "laptop"}]),
        ["the study has a run twice: copy:longest=4:variant=same, rope, seed 0"],
    ),
    "a run twice by a default": (
        varied(["rope", "rope:fraction=1.0"]),
        ["encoding rope and encoding rope:fraction=1.0 are the same run: leave one of them out"],
    ),
    "a million runs": (
        with_(
            base={},
            vary={"task": [f"copy:longest={n}" for n in range(1, 101)], "encoding": [f"a{n}" for n in range(100)]},
            seeds=100,
        ),
        ["the study would have 1,000,000 runs; 100,000 are the most that one study can have"],
    ),
    # --- names that are not there
    "unknown task": (based(task="copyy"), ["base.task: unknown task 'copyy'. Did you mean 'copy'?"]),
    "unknown encoding": (
        varied(["nope", "ropee"]),
        ["vary.encoding.1: unknown encoding 'ropee'. Did you mean 'rope'?"],
    ),
    "unknown option": (
        based(encoding="rope:tehta=1"),
        ["base.encoding: encoding 'rope' has no option 'tehta'. Did you"],
    ),
    "unknown variant": (based(task="copy:variant=samee"), ["base.task: option 'variant' of task 'copy' cannot be"]),
    "unknown positions": (
        based(positions="randomised"),
        ["base.positions: unknown positions 'randomised'. Did you mean"],
    ),
    "unknown model": (based(model="latop"), ["base.model: unknown preset 'latop'. Did you mean 'laptop'?"]),
    "unknown training": (based(training="laptop:stepz=3"), ["base.training: training 'laptop' has no option 'stepz'."]),
    "a negative number of steps": (
        based(training="laptop:steps=-3"),
        ["option 'steps' of training 'laptop' cannot be"],
    ),
    "an option of the wrong type": (based(encoding="rope:theta=much"), ["option 'theta' of encoding 'rope' cannot be"]),
    "a mask that shows the answer": (based(model="laptop:mask=bidirectional"), ["sees the tokens it must predict"]),
    "the vocabulary": (based(model="laptop:vocabulary=9"), ["the task decides the vocabulary of a run's model"]),
    "a list for three layers": (
        based(encoding=["rope", "nope", "rope"]),
        ["a list of encodings has one entry per layer: 2 layers, but 3 entries"],
    ),
    "too short a table": (
        based(encoding="learned:limit=8"),
        ["'learned:limit=8' has positions up to 7, copy of length"],
    ),
    "too few positions": (
        based(positions="randomized:limit=3"),
        ["needs more than 3 positions; write randomized:limit="],
    ),
    "too wide a model": (
        based(model="laptop:width=1000000000"),
        ["option 'width' of preset 'laptop' cannot be 1000000000: Input should be less than or equal to 65536"],
    ),
    "too wide an attention": (
        based(model="laptop:width=60000:heads=1000:head_width=60000"),
        ["write a smaller width, heads or head_width"],
    ),
    "positions beyond memory": (
        based(positions="randomized:limit=100000000000000"),
        ["base.positions: option 'limit' of positions 'randomized' is at most 10,000,000"],
    ),
    "a number of 5000 digits": (
        based(encoding="rope:theta=" + "9" * 3990),
        ["base.encoding: a number of 3,990 digits"],
    ),
    # --- resources
    "no cpu": (with_(resources={"cpus": 0}), ["resources.cpus: should be greater than 0, not '0'"]),
    "a negative gpu": (
        with_(resources={"gpus": -1}),
        ["resources.gpus: should be greater than or equal to 0, not '-1'"],
    ),
    "memory in zebras": (
        with_(resources={"memory": "2 zebras"}),
        ["resources.memory: write a number and a unit, e.g. 2 GiB, not '2 zebras'"],
    ),
    "endless memory": (
        with_(resources={"memory": "9" * 400 + " GiB"}),
        ["resources.memory: write a number and a unit"],
    ),
    "no thread": (with_(resources={"threads": 0}), ["resources.threads: should be greater than or equal to 1"]),
    "infinite cpus": (with_(resources={"cpus": float("inf")}), ["resources.cpus: write a finite number, not 'inf'"]),
    "no custom resource": (
        with_(resources={"custom": {"a100": 0}}),
        ["resources.custom.a100: should be greater than 0"],
    ),
    # --- evaluations
    "an evaluation of nothing": (
        with_(evaluations=[{}]),
        ["evaluations.0: an evaluation that changes nothing is what"],
    ),
    "an evaluation twice": (
        with_(evaluations=[{"examples": 8}, {"examples": 8}]),
        ["evaluations.1 is listed twice; leave it out"],
    ),
    "lengths in words": (
        with_(evaluations=[{"lengths": "a-b"}]),
        ["evaluations.0: lengths are written 8,16,32, 17-40 or 64..4096:x2"],
    ),
    "lengths backwards": (
        with_(evaluations=[{"lengths": "9-3"}]),
        ["lengths are written 8,16,32, 17-40 or 64..4096:x2, not '9-3'"],
    ),
    "superscript lengths": (
        with_(evaluations=[{"lengths": "²"}]),
        ["lengths are written 8,16,32, 17-40 or 64..4096:x2, not '²'"],
    ),
    "length 0": (
        with_(evaluations=[{"lengths": "0"}]),
        ["evaluations.0.lengths, copy:longest=4:variant=same: copy has no"],
    ),
    "a length beyond all": (with_(evaluations=[{"lengths": "8,2000000"}]), ["a length of 2000000 is beyond anything"]),
    "too many lengths": (with_(evaluations=[{"lengths": "1-900000"}]), ["are more than 10,000 lengths; write fewer"]),
    "a length twice": (
        with_(evaluations=[{"lengths": "8,5-9"}]),
        ["evaluations.0: length 8 is listed twice in '8,5-9'"],
    ),
    "unknown scale": (
        with_(evaluations=[{"temperature": "log-m"}]),
        ["evaluations.0.temperature: unknown temperature 'log-m'. Did"],
    ),
    "unknown encoding at test": (
        with_(evaluations=[{"encoding": "alibbi"}]),
        ["evaluations.0.encoding: unknown encoding 'alibbi'. Did you mean 'alibi'?"],
    ),
    "unknown checkpoint": (
        with_(evaluations=[{"checkpoint": "first"}]),
        ["evaluations.0.checkpoint: should be 'last'"],
    ),
    # --- the learning rate
    "one rate": (with_(lr={"choose": [0.001]}), ["lr.choose: the list has too few entries, not '[0.001]'"]),
    "a negative rate": (with_(lr={"choose": [0.001, -1.0]}), ["lr.choose.1: should be greater than 0, not '-1.0'"]),
    "a rate twice": (with_(lr={"choose": [0.001, 0.001]}), ["lr: 0.001 is listed twice in choose"]),
    "a rate that is none": (with_(lr={"choose": [0.001, float("nan")]}), ["lr.choose.1: write a finite number"]),
    "a group of another task": (with_(lr={"groups": [["sort"]]}), ["lr.groups: 'sort' is no task of the study."]),
    "a task in two groups": (
        with_(base={"task": "copy", "encoding": "rope"}, lr={"groups": [["copy"], ["copy"]]}),
        ["lr: task 'copy' is in groups twice"],
    ),
    "a group whose first has other encodings": (
        with_(
            base={},
            linked=[{"task": "copy", "encoding": "rope"}, {"task": "sort", "encoding": "nope"}],
            lr={"groups": [["copy", "sort"]]},
        ),
        ["lr.groups: the rate of 'sort' is chosen on 'copy', which has no run with encoding 'nope'"],
    ),
    "a rate and a rule": (
        with_(base={"task": "copy", "encoding": "rope", "training": "laptop:lr=0.5"}, lr={}),
        ["training 'laptop:lr=0.5' has an lr, and lr chooses one; leave out one of them"],
    ),
    "unknown quick": (with_(quick=["sort"]), ["quick: 'sort' is no task of the study."]),
    # --- YAML
    "python tags": (
        GOOD + "deviations: !!python/object/apply:os.system ['touch MARKER']\n",
        ["line 7: tags ('tag:yaml.org,2002:python/object/apply:os.system') are not used in studies"],
    ),
    "any tag": (GOOD + "deviations: [!!binary aGk=]\n", ["line 7: tags ('tag:yaml.org,2002:binary') are not used"]),
    "an anchor": (
        GOOD + "deviations: [&a x]\n",
        ["line 7: anchors and aliases (&name, *name) are not used in studies"],
    ),
    "an alias": (GOOD + "deviations: *a\n", ["line 7: anchors and aliases (&name, *name) are not used in studies"]),
    "a bomb": (BOMB, ["line 1: anchors and aliases (&name, *name) are not used in studies"]),
    "a merge": (GOOD + "<<: {seeds: 3}\n", ["<<: there is no such field."]),
    "a field twice": (GOOD + "name: other\n", ["line 7: 'name' is given twice"]),
    "an option twice": (GOOD.replace("rope", "{name: rope, theta: 1, theta: 2}"), ["line 5: 'theta' is given twice"]),
    "a number as a field": (GOOD + "3: 4\n", ["line 7: a field is a word, not '3'"]),
    "a list as a field": (GOOD + "? [a, b]\n: 4\n", ["line 7: a field is a word, not "]),
    "tabs": (GOOD + "resources:\n\tcpus: 1\n", ["that cannot start any token; indent with spaces"]),
    "an open bracket": (GOOD + "quick: [copy\n", ["no YAML: while parsing a flow sequence, expected ',' or ']'"]),
    "an open quote": (GOOD + "quick: 'copy\n", ["no YAML: while scanning a quoted scalar, found unexpected end"]),
    "two documents": (GOOD + "---\n" + GOOD, ["line 7: no YAML: expected a single document in the stream"]),
    "nothing": ("", ["bad.yaml is empty: write a mapping with name, question"]),
    "a comment": ("# nothing\n", ["bad.yaml is empty: write a mapping with name, question"]),
    "a list": ("- name: good\n", ["bad.yaml is no study: write a mapping with name, question"]),
    "a word": ("good\n", ["bad.yaml is no study: write a mapping with name, question"]),
    "no as a name": (
        GOOD.replace("good", "no"),
        ['line 1: readers of YAML differ on no: write "no", true, false or 12'],
    ),
    "a date as a name": (GOOD.replace("good", "2024-01-01"), ["line 1: readers of YAML differ on 2024-01-01"]),
    "octal seeds": (GOOD.replace("seeds: 2", "seeds: 010"), ["line 6: readers of YAML differ on 010"]),
    "hexadecimal seeds": (GOOD.replace("seeds: 2", "seeds: 0x10"), ["line 6: readers of YAML differ on 0x10"]),
    "minutes": (GOOD.replace("seeds: 2", "seeds: 1:30"), ["line 6: readers of YAML differ on 1:30"]),
    "underscores": (GOOD.replace("seeds: 2", "seeds: 1_0"), ["line 6: readers of YAML differ on 1_0"]),
    "a name with an escape": (
        GOOD.replace("good", r'"\e[31mgood"'),
        ["line 1: the character U+001B cannot be printed"],
    ),
    "half a character": (GOOD.replace("good", r'"\ud800"'), ["line 1: the character U+D800 cannot be printed"]),
    "deep": (GOOD + "deviations: " + "[" * 3000 + "]" * 3000 + "\n", ["line 7: nested too deeply"]),
    "a deep mapping": (GOOD + "deviations: " + "{a: " * 100 + "}" * 100 + "\n", ["line 7: nested too deeply"]),
    "a large file": (GOOD + "# " + "x" * 2**20, ["bad.yaml is larger than 1,048,576 bytes; no study is"]),
    "a huge number": (GOOD.replace("seeds: 2", "seeds: " + "9" * 5000), ["no YAML: Exceeds the limit"]),
    "junk": (bytes(range(256)), ["is no text: byte 129 is not UTF-8; save it as UTF-8"]),
    "latin-1": (GOOD.replace("work", "wörk").encode("latin-1"), ["is not UTF-8; save it as UTF-8"]),
    "a null byte": (GOOD.replace("good", "go\0od"), ["no YAML: unacceptable character #x0000"]),
    # --- several at once
    "many fields": (
        with_(name="Good", question="", sedes=3, seeds=-1, resources={"cpus": 0, "memory": "2"}, quick=[3]),
        ["name: ", "question: ", "sedes: ", "seeds: ", "resources.cpus: ", "resources.memory: ", "quick.0: "],
    ),
    "many that belong together": (
        with_(
            seeds=[1, 1000, 1],
            lr={"groups": [["sort"]]},
            quick=["parity"],
            evaluations=[{"examples": 1}, {"examples": 1}],
        ),
        ["seeds: 1 is listed", "seeds: 1000 is a", "lr.groups: 'sort'", "quick: 'parity'", "evaluations.1"],
    ),
    "many names": (
        with_(
            base={"model": "latop", "positions": "consecutiv", "training": "laptop:rte=1"},
            vary={"task": ["copyy", "copy:longest=4", "sort:longest=-1"], "encoding": ["ropee", "nope", "t5:bucket=3"]},
        ),
        [
            *("base.positions: ", "base.model: ", "base.training: ", "vary.task.0: ", "vary.task.2: "),
            *("vary.encoding.0: ", "vary.encoding.2: "),
        ],
    ),
    "many that only building shows": (
        with_(
            base={"task": "copy:longest=4"},
            vary={"encoding": ["learned:limit=3", "rope:fraction=0.1", "nope", "alibi", "alibi:slopes=authors"]},
            evaluations=[{"lengths": "0"}, {"temperature": "x"}],
        ),
        [
            *("copy:longest=4, learned:limit=3: ", "rope:fraction=0.1 in model laptop: "),
            *("evaluations.0.lengths, ", "evaluations.1.temperature: ", "alibi:slopes=authors are the same run: "),
        ],
    ),
}


@pytest.fixture
def place(tmp_path):
    return tmp_path


def write(place, content):
    data = content if isinstance(content, bytes) else content.encode()
    (place / "bad.yaml").write_bytes(data)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_bad_file_is_refused_with_its_mistakes_and_nothing_else(place, case):
    content, said = CASES[case]
    write(place, content)
    lines = told(cli("study", "check", "bad.yaml", cwd=place))
    for fragment in said:
        assert any(fragment in line for line in lines), (fragment, lines)
    assert len(lines) == len(said), lines
    assert [path.name for path in place.iterdir()] == ["bad.yaml"]


def process(*arguments, cwd):
    command = [sys.executable, "-m", "lengthwise", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["python tags", "a bomb", "many names", "junk", "a run twice by a default"])
def test_in_a_process_of_its_own_it_is_the_same(place, case):
    content, said = CASES[case]
    write(place, content)
    lines = told(process("study", "check", "bad.yaml", cwd=place))
    assert len(lines) == len(said) and all(any(part in line for line in lines) for part in said)
    assert [path.name for path in place.iterdir()] == ["bad.yaml"]


@pytest.mark.parametrize("command", ["check", "plan", "status", "run", "rows"])
def test_every_command_refuses_a_bad_file(place, command):
    write(place, with_(sedes=3, seeds=-1))
    lines = told(cli("study", command, "bad.yaml", cwd=place))
    assert len(lines) == 2 and lines[1].startswith("sedes: there is no such field.")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.yaml", "there is no study 'nowhere.yaml'; give the path of a YAML file."),
        ("quickstrt", "there is no study 'quickstrt'; give the path of a YAML file. Did you mean 'quickstart'?"),
        ("folder", "folder is a folder; give the path of a YAML file"),
        ("good.yaml/bad.yaml", "good.yaml/bad.yaml cannot be read: Not a directory"),
        ("x" * 5000, "cannot be read: File name too long"),
        ("", " is a folder; give the path of a YAML file"),
    ],
    ids=["missing", "nearly a recipe", "a folder", "below a file", "too long", "empty"],
)
def test_a_file_that_is_none(place, name, said):
    (place / "folder").mkdir()
    (place / "good.yaml").write_text(GOOD)
    (line,) = told(cli("study", "check", name, cwd=place))
    assert said in line


def test_an_unreadable_file_is_told(place, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    (place / "good.yaml").write_text(GOOD)
    monkeypatch.setattr(Path, "open", refuse)
    (line,) = told(cli("study", "check", "good.yaml", cwd=place))
    assert line == "good.yaml cannot be read: Permission denied"


# --- code from outside -----------------------------------------------------------------------------------------------

COMMANDS = {
    "check": ["study", "check", "bad.yaml"],
    "check as JSON": ["study", "check", "bad.yaml", "--json"],
    "plan": ["study", "plan", "bad.yaml"],
    "status": ["study", "status", "bad.yaml"],
    "run": ["study", "run", "bad.yaml", "--inline"],
    "retry": ["study", "retry", "bad.yaml", "--inline"],
    "rows": ["study", "rows", "bad.yaml"],
    "export": ["study", "export", "store", "--to", "bundle", "--study", "bad.yaml"],
    "check of some tasks": ["study", "check", "bad.yaml", "--tasks", "copy:longest=4"],
    "plan of some tasks": ["study", "plan", "bad.yaml", "--tasks", "copy:longest=4"],
}
COPY = "copy:longest=4"
FOREIGN = {
    "a task": with_(base={"encoding": "rope"}, vary={"task": [COPY, "evil.py:Evil"]}),
    "a task in a pair": with_(base={"encoding": "rope"}, linked=[{"task": COPY}, {"task": "evil.py:Evil"}]),
    "an encoding": with_(base={"task": COPY}, vary={"encoding": ["rope", "evil.py:Evil:strength=2"]}),
    "an encoding of a layer": with_(base={"task": COPY, "encoding": ["rope", "evil.py:Evil"]}),
    "a file without its class": with_(base={"task": COPY, "encoding": "evil.py"}),
    "a module": with_(base={"task": COPY, "encoding": "evil:Evil"}),
    "a mapping": with_(base={"task": COPY, "encoding": {"name": "evil.py:Evil", "strength": 2}}),
    "positions": with_(base={"task": COPY, "encoding": "rope", "positions": "evil.py:Evil"}),
    "an encoding at test time": with_(base={"task": COPY, "encoding": "rope"}, evaluations=[{"encoding": "evil:Evil"}]),
    "a scale at test time": with_(
        base={"task": COPY, "encoding": "rope"}, evaluations=[{"temperature": "evil.py:Evil"}]
    ),
    "a scale without its class": with_(
        base={"task": COPY, "encoding": "rope"}, evaluations=[{"temperature": "evil.py"}]
    ),
    "a model's temperature": with_(base={"task": COPY, "encoding": "rope", "model": "laptop:temperature=evil.py"}),
    "the task of a rate": with_(
        base={"encoding": "rope"}, vary={"task": [COPY, "evil.py:Evil"]}, lr={"groups": [["evil.py:Evil", COPY]]}
    ),
}
FILTERED = {"a task", "a task in a pair"}
"""Where the only foreign name is a task, leaving it out with --tasks is no mistake."""


@pytest.fixture
def evil(place, monkeypatch):
    """A file that leaves a mark when it is imported."""
    monkeypatch.delitem(sys.modules, "evil", raising=False)  # another test may have imported its own
    (place / "evil.py").write_text(MARK.format(where=str(place / "imported")))
    (place / "store").mkdir()
    return place / "imported"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("where", FOREIGN)
def test_code_from_outside_is_not_imported_without_consent(place, evil, monkeypatch, where, command):
    monkeypatch.syspath_prepend(str(place))
    write(place, FOREIGN[where])
    done = cli(*COMMANDS[command], cwd=place)
    assert not evil.exists() and "evil" not in sys.modules
    if where in FILTERED and "--tasks" in COMMANDS[command]:
        assert done.returncode == 0, done.stderr
        return
    (line,) = told(done)
    assert line.startswith("the study names code from outside the package (") and "evil" in line
    assert line.endswith("which would be run; look at it, then give --allow-code, or allow_code=True in Python")


def test_the_mark_is_left_when_it_may_be(place, evil):
    write(place, FOREIGN["an encoding"])
    done = cli("study", "check", "bad.yaml", "--allow-code", cwd=place)
    which, error = done.stderr.splitlines()
    assert which == "lengthwise: the study runs code from outside the package: evil.py:Evil"
    assert evil.exists() and "'evil.py:Evil' has no option 'strength'" in error and done.returncode == 2


def test_one_more_encoding_is_no_consent_to_what_the_file_names(place, evil):
    write(place, FOREIGN["an encoding"])
    done = cli("study", "check", "bad.yaml", "--add", "nope", cwd=place)
    assert done.returncode == 2 and not evil.exists()


# --- limits ----------------------------------------------------------------------------------------------------------


def grid(many):
    """A study of 100 × `many` runs, of names that nobody looks at."""
    return {
        **{"name": "grid", "question": "How many?", "base": {"task": "copy"}, "seeds": 100},
        "vary": {"encoding": [f"rope:theta={one}" for one in range(1, many + 1)]},
    }


def test_a_study_of_as_many_runs_as_there_may_be_is_planned_and_of_more_refused():
    assert len(Planned(StudyFile.of(grid(RUNS // 100))).points) == RUNS
    with pytest.raises(SpecError, match="would have 100,100 runs; 100,000 are the most"):
        StudyFile.of(grid(RUNS // 100 + 1))


def test_the_runs_are_counted_before_they_are_made():
    axes = {axis: [f"x{number}" for number in range(500)] for axis in ("task", "encoding", "positions", "model")}
    began = time.process_time()
    with pytest.raises(SpecError, match="would have 62,500,000,000,000 runs"):
        StudyFile.of({"name": "grid", "question": "How many?", "vary": axes, "seeds": 1000})
    assert time.process_time() - began < 2


def test_hundreds_of_mistakes_are_not_all_told():
    with pytest.raises(SpecError) as error:
        StudyFile.of({**grid(1), "deviations": list(range(1000))})
    lines = str(error.value).split("\n")
    assert len(lines) == 51 and lines[-1] == "the study: ... and 950 more mistakes"
    planned = Planned(
        StudyFile.of({**grid(1), "base": {}, "vary": {"encoding": ["t5"], "task": [f"x{n}" for n in range(90)]}})
    )
    assert len(check(planned)) == 51


# --- anything at all -------------------------------------------------------------------------------------------------

VALID = [
    yaml.safe_load(GOOD),
    grid(3),
    {
        **{"name": "all", "question": "Everything?", "seeds": [0, 3], "quick": [COPY], "checkpoint_every": 10},
        "base": {"model": {"name": "laptop", "layers": 2}, "training": "laptop:steps=20"},
        "vary": {"encoding": ["rope:fraction=0.5", {"name": "t5"}, ["nope", "rope"]]},
        "linked": [{"task": COPY}, {"task": "sort:longest=4", "seeds": 1, "positions": "randomized:limit=256"}],
        "lr": {"choose": [0.001, 0.002], "groups": [[COPY]], "seeds": [99]},
        "evaluations": [{"lengths": "5-8,12"}, {"temperature": "log-n", "checkpoint": "best"}, {"encoding": "alibi"}],
        "resources": {"cpus": 1, "gpus": 0, "memory": "2 GiB", "threads": 2, "custom": {"a100": 1}},
        "deviations": ["none"],
    },
]
SENTINEL = "sentinel_of_the_fuzz"
NASTY = [
    *(10**30, -(10**30), 2**63, 10**400, -1, 0, 1, 1.5, float("nan"), float("inf"), -float("inf"), 1e308, 5e-324, True),
    *(False, None, "", " ", ":", ",", "=", "[", "]", "rope:", ":rope", "rope:=", "rope:a", "rope:theta=[1,[2]]", "a,b"),
    *(
        "rope,nope",
        "rope:theta=1:theta=2",
        "name",
        "no",
        "1e-3",
        "010",
        "1:30",
        "2024-01-01",
        "²",
        "٣",
        "\x00",
        "\u2028",
    ),
    *("\ud800", "x" * 5000, "9" * 5000, "rope:theta=" + "9" * 3000, "../..", "~", "null", "true", "copy", "sort", "t5"),
    *(
        f"{SENTINEL}.py:Evil",
        f"{SENTINEL}.py",
        f"{SENTINEL}:Evil",
        f"rope,{SENTINEL}.py:Evil",
        "os:system",
        "os.path:join",
    ),
    *("laptop:layers=1000000000", "laptop:steps=0", "laptop:temperature=os.py", "learned:limit=1", "copy:longest=0"),
    *(
        "file:path=/dev/null:longest=2",
        "file:path=/:longest=2",
        "randomized",
        "offset:limit=2",
        "paper",
        "log-n",
        "1-10",
    ),
    *("10-1", "1-999999999", "2 GiB", "0 MB", [], {}, [[]], [[[[1]]]], {"name": "rope"}, {"name": 3}, {"a": {"b": []}}),
    *(
        {"name": "rope", "theta": "1:fraction=0.5"},
        {"name": "rope", "theta": [1, [2]]},
        ["rope", 3],
        [None],
        list(range(99)),
    ),
    *({"task": "copy"}, {"encoding": "nope"}, {"choose": [1, 2]}, {"lengths": "1"}, [{"task": "copy"}] * 3, {"": ""}),
]
FIELDS = [
    *StudyFile.model_fields,
    "task",
    "encoding",
    "positions",
    "training",
    "model",
    "lengths",
    "choose",
    "",
    "<<",
    "intro",
]


def places(value, path=()):
    """Every place of nested data."""
    found = [path] if path else []
    listed = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    return found + [place for key, below in listed for place in places(below, (*path, key))]


def at(value, path):
    for key in path:
        value = value[key]
    return value


@st.composite
def mutated(draw):
    """A valid study after a few accidents."""
    content = deepcopy(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 3))):
        there = places(content)
        if not there:
            break
        *above, last = draw(st.sampled_from(there))
        parent = at(content, above)
        what = draw(st.sampled_from(["delete", "replace", "replace", "replace", "rename", "insert", "twice", "swap"]))
        if what == "delete":
            del parent[last]
        elif what == "replace":
            parent[last] = deepcopy(draw(st.sampled_from(NASTY)))
        elif what == "swap":
            parent[last] = deepcopy(at(content, draw(st.sampled_from(there))))
        elif what == "twice" and isinstance(parent, list):
            parent.append(deepcopy(parent[last]))
        elif isinstance(parent, dict):
            value = parent[last] if what != "insert" else deepcopy(draw(st.sampled_from(NASTY)))
            if what == "rename":
                del parent[last]
            parent[draw(st.sampled_from(FIELDS))] = value
    lines = dumped(content).splitlines()
    if draw(st.integers(0, 9)) == 0:
        lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(lines)))
    return "\n".join(lines) + "\n"


class NoAliases(yaml.SafeDumper):
    """What is there twice is written twice."""

    def ignore_aliases(self, data):
        return True


def dumped(content):
    return yaml.dump(content, Dumper=NoAliases, sort_keys=False, allow_unicode=True)


LEAVES = st.one_of(st.sampled_from(NASTY), st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20))
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), inner),
    max_leaves=12,
)
UNWELL = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A folder with code that must never be imported, and to work in."""
    folder, before = tmp_path_factory.mktemp("fuzz"), Path.cwd()
    (folder / f"{SENTINEL}.py").write_text(MARK.format(where=str(folder / "imported")))
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    os.chdir(before)


def plan_or_mistakes(there, text):
    """Read and plan what is written; returns how it ended."""
    file = there / "bad.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    before = set(sys.modules)
    try:
        study = StudyFile.read("bad.yaml")
        assert StudyFile.of(study.model_dump()) == study
        planned = Planned(study)
        assert len(planned.points) == study.runs
        if planned.outside_code_names():
            ended = "foreign"
        else:
            items, waiting = planned.items({}) if study.runs <= 1000 else ([], [])
            assert len({item.key for item in items if item.kind == "run"}) <= study.runs
            ended = "waiting" if waiting else "planned"
    except SpecError as error:
        ended, lines = "refused", str(error).split("\n")
        assert all(line.strip() and line.isprintable() and len(line) < 800 for line in lines), lines
        assert len(set(lines)) == len(lines)
    fresh = set(sys.modules) - before
    assert not [name for name in fresh if name.startswith("lengthwise_outside_") or SENTINEL in name]
    assert not (there / "imported").exists()
    return ended


ENDED = {"refused": 0, "foreign": 0, "waiting": 0, "planned": 0}


@pytest.mark.slow
@settings(UNWELL, max_examples=1200)
@given(text=mutated())
def test_any_accident_to_a_valid_study_is_a_plan_or_told(there, text):
    ENDED[plan_or_mistakes(there, text)] += 1


@pytest.mark.slow
def test_the_accidents_were_of_all_kinds():
    if not sum(ENDED.values()):
        pytest.skip("the accidents were not made in this process")
    assert min(ENDED.values()) >= 10, ENDED


@pytest.mark.slow
@settings(UNWELL, max_examples=400)
@given(content=NESTED)
def test_any_data_is_a_plan_or_told(there, content):
    plan_or_mistakes(there, dumped(content))


@pytest.mark.slow
@settings(UNWELL, max_examples=400)
@given(
    text=st.one_of(st.text(), st.binary(), st.text(alphabet="abn:-[]{}&*!|>'\"#%@`,? \n\t0123456789"), st.just(GOOD))
)
def test_any_text_is_a_plan_or_told(there, text):
    plan_or_mistakes(there, text)

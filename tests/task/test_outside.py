"""A task from a user's own file: each of its faults is one line that says where it is."""

import pytest

from lengthwise.progress import progress
from lengthwise.spec import SpecError
from lengthwise.task import build_task
from lengthwise.task.audit import audit
from lengthwise.task.block import training_block
from lengthwise.task.sets import evaluation_instances, instance_factory
from tests.test_cli import run

GOOD = """
from dataclasses import dataclass
from lengthwise.task.base import Example, Task

@dataclass(frozen=True, kw_only=True)
class Mine(Task):
    longest: int = 4
    symbols = ("a", "b", "=")

    def draw(self, words, length):
        return "".join(words.choice("ab", length))

    def to_example(self, instance):
        return Example((*instance, "="), (instance[0],))

    def check(self, instance, said):
        return tuple(said) == (instance[0],)

    def longest_answer_instance(self, length):
        return "a" * length

    def space(self, length):
        return 2**length

    def chance(self, length):
        return 0.5
"""


def mine(tmp_path, old="", new="", options=""):
    assert old in GOOD
    path = tmp_path / "mine.py"
    path.write_text(GOOD.replace(old, new) if old else GOOD)
    return f"{path}:Mine{options}"


def test_a_sound_task_is_as_it_is_without_guards(tmp_path):
    task = build_task(mine(tmp_path))
    assert not audit(task, "mine").problems
    bare = type(task)()
    assert task == bare
    assert hash(task) == hash(bare)
    assert (training_block(task, 0, 50).ids == training_block(bare, 0, 50).ids).all()


def test_the_tasks_of_the_package_have_no_guards():
    assert "draw" not in vars(build_task("parity"))
    assert "draw" not in vars(build_task("lengthwise.task.parity:Parity"))


def use(spec):
    """All that show, audit and export ask of a task."""
    task = build_task(spec)
    make = instance_factory(task, "train", 4)
    example = task.to_example(make(0))
    task.vocabulary.sequence(example.prompt, example.target, task.starts)
    task.chance(4)
    evaluation_instances(task, "test_unseen", 7)
    audit(task, spec)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def draw", "def drawn", "lacks draw; `lengthwise new task NAME` writes a file"),
        ('symbols = ("a", "b", "=")', "", "lacks symbols;"),
        ("def to_example", "def to_examples", "lacks to_example;"),
        ('symbols = ("a", "b", "=")', "def symbols(self): return 1", "symbols is a method; write @property above it"),
        ('symbols = ("a", "b", "=")', "symbols = 7", "symbols is 7 (int); it is a tuple, a list or a range"),
        ('symbols = ("a", "b", "=")', 'symbols = ("a", 7)', "symbols has 7, not a string"),
        ('symbols = ("a", "b", "=")', "lengths = range(1, 9)\n    @property\n    def symbols(self): 1 / 0",
         "symbols: mine.py, line 10: ZeroDivisionError"),
        ('return Example((*instance, "="), (instance[0],))', "pass", "to_example returned None: return Example("),
        (
            'return Example((*instance, "="), (instance[0],))',
            'return "ab"',
            "to_example returned 'ab' (str): return Ex",
        ),
        ('return Example((*instance, "="), (instance[0],))', "return ('a',), ('b',)", "(tuple): return Example("),
        ('Example((*instance, "="), (instance[0],))', 'Example("ab=", "a")', "its prompt is 'ab=' (str); write a"),
        ('Example((*instance, "="), (instance[0],))', 'Example(("a",), (1,))', "its answer has 1 (int); a symbol is a"),
        ('Example((*instance, "="), (instance[0],))', 'Example(("c",), ("a",))', "the symbol 'c' is not in the vocab"),
        ('return "".join(words.choice("ab", length))', 'return words.choice("ab", length)', "all the way down"),
        ('return "".join(words.choice("ab", length))', "pass", "draw returned None: return the instance"),
        ('return "".join(words.choice("ab", length))', "return words.below(0)", "mine.py, line 11: ZeroDivisionError"),
        ('"".join(words.choice("ab", length))', 'tuple(map(__import__("numpy").int64, words.integers(0, 2, length)))',
         "what draw returns: TypeError: Object of type int64 is not JSON serializable"),
        ('return "".join(words.choice("ab", length))', "raise SystemExit('no\\nway')", "line 11: SystemExit: no way"),
        ("return 0.5", "pass", "chance returned None: return a number"),
        ("return 2**length", "pass", "space returned None: return a whole number"),
        ("return 2**length", "return 0", "space returned 0 (int): a length that can be drawn has at least one"),
        ('return "a" * length', "pass", "longest_answer_instance returned None"),
        ("return tuple(said) == (instance[0],)", "pass", "check returned None: return True or False"),
        ("@dataclass(frozen=True, kw_only=True)", "", "Mine states longest, which would be ignored: write @dataclass"),
        ("@dataclass(frozen=True, kw_only=True)", "@dataclass(frozen=True)", "'longest' of Mine cannot be an option"),
        ("longest: int = 4", "longest = 4", "sets longest without a type, which would be ignored: write longest: int"),
    ],
)  # fmt: skip
def test_a_fault_is_one_line_that_says_where(tmp_path, old, new, said):
    spec = mine(tmp_path, old, new)
    with pytest.raises(SpecError) as error:
        use(spec)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_options_ignored_for_want_of_a_decorator_are_told_before_they_are_unknown(tmp_path):
    spec = mine(tmp_path, "@dataclass(frozen=True, kw_only=True)", "", ":longest=3")
    with pytest.raises(SpecError, match="which would be ignored"):
        build_task(spec)


def test_the_base_class_is_no_task(tmp_path):
    mine(tmp_path)
    done = run("show", "mine.py:Task", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "'mine.py:Task' is the base class of all tasks" in done.stderr
    unwritten = r"could not be built: line .*: NotImplementedError: max_answer_digits is not written"
    with pytest.raises(SpecError, match=unwritten):
        build_task("lengthwise.task.numbers:Numbers")


def test_a_file_of_data_is_told_apart_from_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.jsonl").write_text("{}")
    with pytest.raises(SpecError, match=r"as a task it is file:path=good.jsonl:longest=N"):
        build_task("good.jsonl")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("return 0.5", "return 1.5", "chance(1) is 1.5, which is no share from 0 to 1"),
        ("return 0.5", "return -0.1", "chance(1) is -0.1, which is no share from 0 to 1"),
        ("longest: int = 4", "longest: int = 4\n    version = 1.5", "version is 1.5; it is a whole number"),
        (
            'return "".join',
            'import random; random.random(); return random.choice("ab") + "".join',
            "from the same words",
        ),
    ],
)
def test_an_audit_finds_what_is_wrong_with_it(tmp_path, old, new, said):
    spec = mine(tmp_path, old, new)
    try:
        told = "; ".join(audit(build_task(spec), spec).problems)
    except SpecError as error:  # of a draw that is not repeated, too many were found
        told = str(error)
    assert said in told


def test_an_audit_says_how_far_it_is(tmp_path):
    told = []
    audit(build_task(mine(tmp_path)), "mine", told.append)
    assert told[0] == f"1/{len(told)}: train, length 1"
    assert told[-1] == f"{len(told)}/{len(told)}: test_far, length 16"


def test_where_nobody_looks_a_line_comes_now_and_then(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("lengthwise.progress.time.monotonic", lambda: now[0])
    with progress() as tell:
        for second in range(25):
            now[0] = float(second)
            tell(f"at {second}")
    assert capsys.readouterr().err == "at 10\nat 20\n"

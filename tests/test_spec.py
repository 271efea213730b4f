"""The grammar of names and options, and errors that say what to type."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.encoding import ENCODINGS, build_encoding, build_positions
from lengthwise.encoding.base import Geometry
from lengthwise.spec import Spec, SpecError, did_you_mean, digest, parse_specs, resolve

GEOMETRY = Geometry(width=32, heads=4, head_width=8)


def test_text_and_mapping_are_the_same_spec():
    text = Spec.of("rope:fraction=0.25:interleaved=true")
    assert text == Spec.of({"name": "rope", "interleaved": True, "fraction": 0.25})
    assert str(text) == "rope:fraction=0.25:interleaved=true"
    assert Spec.of(text.mapping()) == text


def test_values_are_typed_and_lists_may_hold_commas():
    made = Spec.of("x:a=1:b=1.5:c=true:d=null:e=word:f=[1,2,[3]]:g=1e-3")
    assert dict(made.options) == {"a": 1, "b": 1.5, "c": True, "d": None, "e": "word", "f": (1, 2, (3,)), "g": 0.001}
    assert [str(s) for s in parse_specs("nope,given:values=[0,5],rope")] == ["nope", "given:values=[0,5]", "rope"]


def test_a_class_from_outside_is_part_of_the_name():
    made = Spec.of("my_pe.py:Mine:alpha=2")
    assert (made.name, made.options) == ("my_pe.py:Mine", (("alpha", 2),))


plain = st.one_of(st.booleans(), st.none(), st.integers(), st.floats(allow_nan=False, allow_infinity=False))
words = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda word: word not in {"name", "true", "false", "null"}
)


@pytest.mark.slow
@given(words, st.dictionaries(words, st.one_of(plain, words, st.lists(plain, max_size=3).map(tuple)), max_size=4))
def test_what_is_printed_reads_back_as_the_same(name, options):
    spec = Spec(name, tuple(options.items()))
    assert Spec.of(str(spec)) == spec
    assert Spec.of(spec.mapping()) == spec


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ropee", "unknown encoding 'ropee'. Did you mean 'rope'?"),
        ("rope:tehta=1", "encoding 'rope' has no option 'tehta'. Did you mean 'theta'?"),
        ("nope:theta=1", "encoding 'nope' has no option 'theta'. It has no options."),
        ("rope:theta=yes", "option 'theta' of encoding 'rope' cannot be 'yes'"),
        ("rope:interleaved=1", "option 'interleaved' of encoding 'rope' cannot be '1'"),
        ("t5:buckets=true", "option 'buckets' of encoding 't5' cannot be 'true'"),
        ("alibi:slopes=steep", "Input should be 'authors' or 'text'"),
        ("rope:theta=1:theta=2", "given twice"),
        ("rope:theta", "option 'theta' of encoding 'rope' has no value; write rope:theta=value"),
        ("rope:", "'rope:' ends in a colon; write rope alone, or rope:option=value"),
        ("rope:a:b", "option 'b' of 'rope:a' has no value; write b=value"),
        ("", "has no name"),
        (":x=1", "has no name"),
        ("rope:Theta=1", "option names are lower-case words"),
        ("rope:name=1", "no option can be called 'name'"),
        ("rope:fraction=0.3", "must be an even number up to 8, not 0.3 × 8 = 2.4"),
        ("missing.py:Mine", "there is no file 'missing.py'"),
        ("missing.py", "there is no file 'missing.py'"),
        ("no_such_lab.pe:Mine", "there is no module 'no_such_lab'"),
        ("lengthwise.spec:Spec", "the class must derive from lengthwise.encoding.base.Encoding"),
        ("lengthwise.encoding.rope:Rop", "has no class 'Rop'. Did you mean 'Rope'?"),
    ],
)
def test_an_error_says_what_was_wrong_and_what_to_type(text, said):
    with pytest.raises(SpecError) as error:
        build_encoding(text, GEOMETRY)
    assert said in str(error.value)


def test_what_there_is_is_listed_whole_or_says_that_it_goes_on():
    assert did_you_mean("?", map(str, range(10, 34))).endswith(", 33.")
    assert did_you_mean("?", map(str, range(10, 35))).endswith(", 33, ...")


@pytest.mark.parametrize(
    "value", [3, None, ["rope"], {"fraction": 1}, {"name": "rope:theta=1"}, {"name": "x", "a": {}}]
)
def test_what_is_no_spec_is_refused(value):
    with pytest.raises(SpecError):
        Spec.of(value)


def test_a_missing_option_is_asked_for():
    with pytest.raises(SpecError, match="positions 'given' needs 'values'; write given:values="):
        build_positions("given")


OPTIONS = """\
from lengthwise.encoding.base import Encoding
class Positional(Encoding):
    def __init__(self, geometry, window: float = 1.0): super().__init__(geometry)
class Untyped(Encoding):
    def __init__(self, geometry, *, window=1.0): super().__init__(geometry)
class Anything(Encoding):
    def __init__(self, geometry, **rest): super().__init__(geometry)
class NoGeometry(Encoding):
    def __init__(self): super().__init__(None)
class Fails(Encoding):
    def __init__(self, geometry):
        1 / 0
"""


@pytest.mark.slow
def test_an_encoding_from_a_file_is_found_and_its_faults_are_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.py").write_text("from lengthwise.encoding.base import Encoding\nclass Mine(Encoding):\n  pass\n")
    (tmp_path / "syntax.py").write_text("x = 1\nclass Mine(:\n")
    (tmp_path / "fails.py").write_text("x = 1\n\nBOOM = x / 0\nclass Mine:\n    y = BOOM\n")
    (tmp_path / "needs.py").write_text("import no_such_package_at_all\n")
    (tmp_path / "exits.py").write_text("import sys\n\nclass Mine:\n    x = sys.exit(3)\n")
    (tmp_path / "neighbour.py").write_text("from good import Mine as Theirs\nclass Mine(Theirs):\n  pass\n")
    (tmp_path / "options.py").write_text(OPTIONS)
    assert build_encoding("neighbour.py:Mine", GEOMETRY).acts() == []
    assert build_encoding("good.py:Mine", GEOMETRY).acts() == []
    assert build_encoding("good:Mine", GEOMETRY).acts() == []
    assert resolve("encoding", ENCODINGS, "good.py:Mine") is resolve("encoding", ENCODINGS, "good.py:Mine")
    for name, said in (
        ("syntax.py:Mine", "line 2"),
        ("fails.py:Mine", "line 3: ZeroDivisionError: division by zero"),
        ("needs:Mine", "No module named 'no_such_package_at_all'"),
        ("good.py", "name the class in it too, e.g. good.py:Mine"),
        ("good.py:", "names no class"),
        ("exits.py:Mine", "could not be loaded: line 4: SystemExit"),
        ("options.py:Positional:window=3.0", "argument 'window' of Positional cannot be an option"),
        ("options.py:Untyped:window=3.0", "argument 'window' of Untyped cannot be an option"),
        ("options.py:Anything:window=3.0", "argument 'rest' of Anything cannot be an option"),
        ("options.py:Fails", "encoding 'options.py:Fails' could not be built: line 12: ZeroDivisionError"),
        ("options.py:NoGeometry", "could not be built"),
        ("good.py:Other", "'good.py' has no class 'Other'. Available: Mine."),
    ):
        with pytest.raises(SpecError) as error:
            build_encoding(name, GEOMETRY)
        assert said in str(error.value)


def test_a_digest_depends_on_its_key_alone_and_in_every_process():
    code = "from lengthwise.spec import digest; print(digest('init', 3, {'b': 1, 'a': [1.5, None]}))"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(there) == digest("init", 3, {"a": [1.5, None], "b": 1}) == 45199438111689505066570264213528918314
    assert digest("a", "b") != digest("ab")

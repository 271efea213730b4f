"""Whatever can be named can be cited, and what is printed is BibTeX."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from lengthwise import __version__
from lengthwise.cli import app
from lengthwise.encoding import ENCODINGS, POSITIONS
from lengthwise.encoding.signature import encoding_stub
from lengthwise.publication.citations import VARIANTS, arxiv_numbers, project_bibtex, short_entry
from lengthwise.publication.citations import entries as bibtex
from lengthwise.spec import resolve
from lengthwise.study.reading import shipped_studies
from lengthwise.task import TASKS

NOBODYS = {"file", "consecutive", "given"}
"""Anybody's own data, and positions that need no invention."""


def cite(*names):
    return CliRunner().invoke(app, ["cite", *names])


def entries(text):
    """What BibTeX would find: kind, key and fields; a fault of braces or commas is an error."""
    found = []
    for part in re.split(r"^(?=@)", text, flags=re.MULTILINE):
        if not part.startswith("@"):
            assert not part.strip() or part.startswith("%")
            continue
        part = part.split("\n%")[0].strip()
        assert part.count("{") == part.count("}") and part.endswith("}")
        head = re.match(r"@(\w+)\{([\w]+),\n", part)
        assert head, part
        fields = dict(re.findall(r"^  (\w+) *= \{(.*)\},$", part, flags=re.MULTILINE))
        assert len(fields) == part.count("\n") - 1
        for value in fields.values():
            depth = 0
            for character in value:
                depth += (character == "{") - (character == "}")
                assert depth >= 0
        found.append((head[1], head[2], fields))
    return found


@pytest.mark.parametrize("name", [*ENCODINGS, *TASKS, *POSITIONS])
def test_everything_that_can_be_named_has_its_entry(name):
    done = cite(name)
    assert done.exit_code == 0
    table = next(table for table in (ENCODINGS, TASKS, POSITIONS) if name in table)
    paper = encoding_stub(name).paper if table is ENCODINGS else resolve("", table, name).paper
    if name in NOBODYS or not (arxiv_numbers(paper) or entries(done.stdout)):
        assert done.stdout.startswith("% ")
    else:
        assert entries(done.stdout)
        assert "%" not in done.stdout, "an arXiv number without an entry in citations.bib"


def test_every_paper_of_an_encoding_or_a_kind_of_positions_has_its_entry():
    classes = [encoding_stub(name) for name in ENCODINGS]
    classes += [resolve("positions", POSITIONS, name) for name in POSITIONS]
    numbers = [number for cls in classes for number in arxiv_numbers(cls.paper)]
    numbers += [number for kinds in VARIANTS.values() for paper in kinds.values() for number in arxiv_numbers(paper)]
    assert len(numbers) > 20
    # A new encoding is two files: until somebody writes its entry, `paper` makes a short one.
    unknown = [cls.paper for cls in classes if (found := arxiv_numbers(cls.paper)) and not set(found) & set(bibtex())]
    assert all(short_entry(paper) for paper in unknown)
    made = short_entry("Chi et al. 2022, arXiv:2205.09921")
    assert made is not None and "author        = {Chi and others}" in made and "eprint        = {2205.09921}" in made
    assert short_entry("you, this year") is None


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("rope:scaling=yarn:factor=2:trained=8", ["su2021roformer", "peng2024yarn"]),
        ("rope:scaling=linear:factor=2", ["su2021roformer", "chen2023extending"]),
        ("rope:p=0.75", ["su2021roformer", "barbero2025round"]),
        ("rope:p=1.0", ["su2021roformer"]),
        ("3*rope,nope", ["su2021roformer", "haviv2022transformer"]),
        ("2*[rope:p=0.5,alibi]", ["su2021roformer", "barbero2025round", "press2022train"]),
    ],
)
def test_variants_and_lists_name_all_they_rest_on(name, keys):
    assert [key for _, key, _ in entries(cite(name).stdout)] == keys


@pytest.mark.parametrize("number", bibtex())
def test_every_entry_parses(number):
    ((kind, key, fields),) = entries(bibtex()[number])
    needed = {"author", "title", "year", "eprint"}
    assert needed | {"inproceedings": {"booktitle"}, "article": {"journal"}, "misc": set()}[kind] <= fields.keys()
    assert fields["eprint"] == number
    assert key.endswith(re.sub(r"\W.*", "", key[4:])) and fields["year"] in key
    assert key.startswith(re.sub(r"[^a-z]", "", fields["author"].split(",")[0].lower().replace("{\\'e}", "e"))[:3])
    assert all("," in author for author in fields["author"].split(" and "))


def test_keys_are_unique():
    keys = [key for text in bibtex().values() for _, key, _ in entries(text)]
    assert len(keys) == len(set(keys))


@pytest.mark.slow
def test_a_study_names_all_it_rests_on():
    keys = [key for _, key, _ in entries(cite("paper").stdout)]
    assert keys[:2] == ["lengthwise", "kazemnejad2023impact"]
    assert {"haviv2022transformer", "raffel2020exploring", "lake2018generalization"} <= set(keys)
    assert len(keys) == len(set(keys))
    for name in shipped_studies():
        assert cite(name).exit_code == 0


def test_several_names_are_cited_once_each():
    keys = [key for _, key, _ in entries(cite("rope", "sort", "copy", "rope:fraction=0.25").stdout)]
    assert keys == ["su2021roformer", "kazemnejad2023impact"]


def test_lengthwise_is_cited_as_its_file_says():
    there = yaml.safe_load((Path(__file__).parents[2] / "CITATION.cff").read_text())
    ((_, key, fields),) = entries(project_bibtex())
    assert key == "lengthwise"
    assert fields["title"].replace("{", "").replace("}", "") == there["title"]
    assert fields["author"] == "{" + there["authors"][0]["name"] + "}"
    assert there["version"] == __version__ and __version__ in fields["note"]
    assert fields["year"] == str(there["date-released"])[:4]
    keys = [key for _, key, _ in entries(cite().stdout)]
    assert keys == ["lengthwise", "kazemnejad2023impact"]


def test_mistakes_are_told():
    assert "Did you mean 'nope'" in str(cite("nop").exception)
    assert "Did you mean 'fraction'" in str(cite("rope:fracton=1").exception)
    assert "no study" in str(cite("nothing.yaml").exception)


def test_code_from_outside_says_its_own(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text('class Mine:\n    paper = "Me 2026, in a drawer"\n')
    assert cite(f"{mine}:Mine").stdout.strip() == "% Me 2026, in a drawer"
    study = tmp_path / "s.yaml"
    mine.write_text("raise SystemExit('loaded')\n")
    study.write_text(
        f"name: s\nquestion: q\nbase: {{task: sort}}\nvary: {{encoding: [nope, '{mine}:Mine']}}\nseeds: 1\n"
    )
    told = cite(str(study))
    assert told.exit_code == 0 and "names no publication" in told.stdout  # and nothing of it was loaded


def test_citing_an_encoding_imports_no_torch():
    code = (
        "import sys; from lengthwise.cli.published import cite, published; cite(['rope', 'sort', 'paper']);"
        "published('accuracy', None); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL).returncode == 0

"""What is released: metadata, README on a package index, sizes, workflows, and one single place for the address."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import yaml

from tests.test_wheel import hook

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ADDRESS = PROJECT["urls"]["Repository"]


def test_the_address_stands_in_one_place():
    kinds = ("md", "py", "toml", "yml", "yaml", "cff", "txt", "html", "json", "sh", "sbatch")
    places = [ROOT, *(ROOT / name for name in (".github", "docs", "src", "studies", "scripts", "tests", "benchmarks"))]
    found = {
        path for place in places for kind in kinds for path in place.glob(f"{'' if place == ROOT else '**/'}*.{kind}")
    }
    assert [path.name for path in sorted(found) if ADDRESS in path.read_text()] == ["pyproject.toml"]


def test_links_of_the_readme_are_absolute_on_a_package_index():
    made = hook().absolute("![a](docs/x.svg) [b](docs/y.md) [c](https://z.org) [d](#e)", "https://r.org/l")
    wanted = "![a](https://r.org/l/raw/main/docs/x.svg) [b](https://r.org/l/blob/main/docs/y.md)"
    assert made == f"{wanted} [c](https://z.org) [d](#e)"
    whole = hook().absolute((ROOT / "README.md").read_text(), ADDRESS)
    assert not re.findall(r"\]\((?!https?:|#)[^)]+\)", whole)


def test_every_dependency_has_a_lower_bound():
    extras = [one for names in PROJECT["optional-dependencies"].values() for one in names]
    assert all(">=" in one for one in (*PROJECT["dependencies"], *extras))


def pinned(name):
    """The versions of a file of constraints."""
    lines = (ROOT / "constraints" / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_the_lowest_versions_are_the_lower_bounds_and_the_tested_ones_lie_above_them():
    extras = [one for names in PROJECT["optional-dependencies"].values() for one in names]
    bounds = {}
    for one in (*PROJECT["dependencies"], *extras):
        name, _, lowest = one.partition(">=")
        bounds[re.sub(r"\[.*", "", name)] = lowest
    assert pinned("lowest.txt") == bounds
    tested = {name.lower(): version for name, version in pinned("tested.txt").items()}
    setup = (ROOT / "scripts" / "setup").read_text()
    tested["torch"] = re.search(r"torch==(\S+)", setup).group(1)
    for name in bounds.keys() - {"wandb"}:  # not installed by scripts/setup
        assert [*map(int, re.findall(r"\d+", tested[name]))] >= [*map(int, re.findall(r"\d+", bounds[name]))]
    assert 'PIP_CONSTRAINT="$PWD/constraints/tested.txt"' in (ROOT / ".ci" / "run").read_text()


@pytest.mark.slow
def test_wheel_and_sdist_are_complete_and_small(tmp_path, figure):
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, capture_output=True, check=True)
    (wheel,), (source,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    check = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(source)]
    told = subprocess.run(check, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    files = zipfile.ZipFile(wheel)
    (name,) = (one for one in files.namelist() if one.endswith("METADATA"))
    metadata = message_from_bytes(files.read(name))
    assert metadata["Author"] == "The lengthwise authors" and f"{ADDRESS}/raw/main/docs/figures" in str(metadata)
    with tarfile.open(source) as archive:
        inside = {Path(one).parts[1] for one in archive.getnames() if len(Path(one).parts) > 1}
    assert {"src", "tests", "docs", "studies", "results", "README.md", "LICENSE"} <= inside
    for one in (wheel, source):
        figure(f"{one.name}: {one.stat().st_size / 1e6:.2f} MB")
        assert one.stat().st_size < 5e6


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_valid_and_pinned(path):
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    told = subprocess.run(check, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout
    settings = yaml.safe_load(path.read_text())
    assert settings["permissions"] == {"contents": "read"}
    for job in settings["jobs"].values():
        assert job["timeout-minutes"] <= 90
        for step in job["steps"]:
            assert "uses" not in step or re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"])


def test_a_workflow_that_is_wrong_is_refused(tmp_path):
    wrong = tmp_path / "ci.yml"
    wrong.write_text(WORKFLOWS[0].read_text().replace("runs-on:", "runs-onn:"))
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(wrong)]
    assert subprocess.run(check, capture_output=True, check=False).returncode != 0


def test_versions_agree():
    import lengthwise

    assert f"version: {lengthwise.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {lengthwise.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_paper_cites_what_its_bibliography_has_and_shows_figures_that_exist():
    folder = ROOT / "docs" / "paper"
    text = (folder / "paper.md").read_text()
    cited = set(re.findall(r"@(\w+\d{4}\w+)", text))
    known = set(re.findall(r"^@\w+\{(\w+),", (folder / "paper.bib").read_text(), re.MULTILINE))
    assert cited == known and cited
    figures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert len(figures) == 2 and all((folder / one).is_file() for one in figures)
    assert 500 < len(text.partition("# Summary")[2].split()) < 1_500

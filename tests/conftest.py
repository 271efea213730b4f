"""What holds for all tests: one thread, and figures that are printed whoever ran the test."""

import json
import os
import shutil
import sysconfig
from pathlib import Path

import pytest
import torch

import lengthwise as lw
from lengthwise.corpora.prepare import prepare
from tests.study.conftest import TINY

# The models are tiny: two threads would only wait for each other.
torch.set_num_threads(1)


@pytest.fixture
def figure(request):
    """Print a measured figure at the end of the run; a worker of xdist has no terminal of its own."""

    def say(text: str) -> None:
        request.node.user_properties.append(("figure", text))

    return say


@pytest.fixture(scope="module")
def browser():
    """Chromium; CI must have it."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        if os.environ.get("LENGTHWISE_CI"):
            pytest.fail("CI must have chromium")
        pytest.skip("no chromium: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
        options += ["--no-first-run", "--disable-component-update", "--disable-sync"]
        running = driver.chromium.launch(executable_path=path, args=options)
        yield running
        running.close()


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A folder with a study file, its finished store, its bundle, a run that was stopped, and a model's folder."""
    home = tmp_path_factory.mktemp("finished")
    (home / "tiny.yaml").write_text(json.dumps({**TINY, "name": "tiny", "evaluations": [{"lengths": "2"}]}))
    lw.Study.read(home / "tiny.yaml").run(str(home / "store"), executor="inline")
    lw.export_bundle(str(home / "store"), home / "bundle")
    shutil.copytree(home / "store", home / "stopped")
    runs = home / "stopped" / "runs"
    first = min(path.name for path in runs.iterdir())
    shutil.rmtree(home / "stopped" / "done")
    (runs / first / "1" / "done").unlink()
    for name in {path.name for path in runs.iterdir()} - {first}:
        shutil.rmtree(runs / name)
    lw.export_model(first, home / "exported", store=str(home / "store"))
    return home


def pytest_terminal_summary(terminalreporter):
    said = [
        text
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, text in report.user_properties
        if name == "figure"
    ]
    if said:
        terminalreporter.section("measured")
        for text in said:
            terminalreporter.write_line(text)


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A folder with 60 small documents of Python's own library, in three folders."""
    home, library = tmp_path_factory.mktemp("texts"), Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for path in library.glob("*.py") if path.stat().st_size > 2_000)[:60]
    for number, path in enumerate(paths):
        (home / f"package{number % 3}").mkdir(exist_ok=True)
        (home / f"package{number % 3}" / path.name).write_bytes(path.read_bytes()[:20_000])
    return home


@pytest.fixture(scope="session")
def corpus(texts, tmp_path_factory):
    """The path of a prepared corpus of these documents, in several shards."""
    to = str(tmp_path_factory.mktemp("corpus") / "corpus")
    how = {"vocabulary": 300, "validation": 0.15, "test": 0.3, "shard_size": 200_000, "workers": 1}
    prepare(str(texts), to, say=lambda words: None, **how)
    return to

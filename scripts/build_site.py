"""Build the site: docs/, and the pages that are made from the code, in one folder of HTML.

    python scripts/build_site.py [FOLDER]

The notebooks of docs/tutorials are run on the way. It takes about two minutes, needs the packages of the dev group, and
fails for a broken link or a failing cell. FOLDER is `site`, unless given.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from math import pi
from pathlib import Path

import typer.main
import yaml
from typer.testing import CliRunner

import lengthwise
from lengthwise.cli.terminal import PANELS, app
from lengthwise.reporting.palette import colour

ROOT = Path(__file__).parent.parent


def command_line() -> str:
    """The page of the command line: every verb with its help, in the order of the panels."""
    verbs = typer.main.get_group(app)
    lines = ["# Command line", "", "Each verb prints its help with `--help`; most take `--json`.", ""]
    for title, names in PANELS.items():
        lines += [f"## {title}", ""]
        for name in names:
            verb = verbs.commands[name]
            own = {f"{name} {one}": command for one, command in getattr(verb, "commands", {}).items()}
            for words, command in {name: verb, **own}.items():
                told = CliRunner().invoke(app, [*words.split(), "--help"], prog_name="lengthwise").output.strip()
                lines += [f"### {words}", "", (command.help or "").split("\n\n")[0], "", "```text", told, "```", ""]
    return "\n".join(lines)


PUBLIC_NAMES = {
    "Start here": "train Run load_run summarize RunSummary compare Comparison evaluate reach ask attention examples "
    "selftest SelfTest",
    "Your encoding": "Encoding Geometry verify assert_conforms checks write_template describe bench Decoder preset "
    "standings check_entry submit_entry",
    "Other people's models": "measure measure_run doctor",
    "Studies": "Study report claims cost export_bundle write_rows fsck study_schema export_model",
    "Why it works": "analyze AttentionAnalysis probe ProbeResults recover Recovered theorem1 theorem2 theory_claims "
    "theory_heads theory_horizon theory_order theory_variance Demonstration",
    "Data": "Task audit export_task export_lm_eval text_lengths prepare_corpus PreparedCorpus",
    "What there is": "encodings positions normalisers temperatures recipes presets tasks studies",
    "The publication": "published published_figure published_topics cite",
}
"""The public names, in the order of the page of the Python interface: as the help of the command line has its verbs."""


def python_page() -> str:
    """The page of the Python interface: every public name, documented from its docstring."""
    lines = ["# Python", "", "`import lengthwise as lw` gives all of these; torch is imported when it is needed.", ""]
    left = set(lengthwise.__all__) - {"__version__"}
    for title, names in PUBLIC_NAMES.items():
        lines += [f"## {title}", ""]
        for name in names.split():
            value = getattr(lengthwise, name)
            lines += [f"::: {value.__module__}.{value.__qualname__}", ""]
            left.remove(name)
    if left:
        raise SystemExit(f"these public names are on no part of the page: {', '.join(sorted(left))}")
    return "\n".join(lines)


def catalogue() -> str:
    """The page of all encodings, as `lengthwise list encodings --markdown` prints it."""
    return CliRunner().invoke(app, ["list", "encodings", "--markdown"], prog_name="lengthwise").output


def leaderboard() -> str:
    """The page of the leaderboard, made from the folders of its entries; none of their code is executed."""
    entries = sorted((ROOT / "leaderboard").glob("*/bundle.json"))
    table = lengthwise.standings(ROOT / "leaderboard").markdown() if entries else "There is no entry yet."
    told = "Entries whose intervals overlap cannot be told apart." if len(entries) > 1 else ""
    return "\n".join(
        [
            "# Leaderboard",
            "",
            "Four tasks (copy, reverse, sort, parity), trained short, tested at up to twice that length, five seeds.",
            "Every line is a folder of the repository that anybody can check.",
            "[Enter your encoding](../how-to/enter-the-leaderboard.md).",
            "",
            table,
            "",
            f"{told} These are models of two and three layers.".strip(),
        ]
    )


EXPLORED = ("laptop-quick", "quickstart", "frequencies", "frequencies-lengths", "glance", "attention")
"""The studies whose rows the interactive page shows; none of them is blind any more."""
FIRST_SHOWN = ("nope", "t5", "alibi", "rope", "sinusoidal")
"""The encodings that it shows at first, where a study has them."""


def by_period(label: str) -> str:
    """The name of an arm of the studies of frequencies by the period of what turns; empty for any other."""
    found = re.fullmatch(
        r"RoPE(?: factor=(?P<factor>[\d.]+))?(?P<one> fraction=0.125)?(?: scaling=linear)?(?P<all> theta=1.0)?", label
    )
    if found is None or not (found["one"] or found["all"]):
        return ""
    period = 2 * pi * float(found["factor"] or 1)
    return f"{'one pair' if found['one'] else 'all pairs'}, period {period:,.{0 if period > 10 else 1}f}"


def explored_rows() -> str:
    """The rows of the interactive page, as a script: accuracy by study, task, encoding, seed and length."""
    found = {}
    for name in EXPLORED:
        study = lengthwise.Study.read(name)
        results = study.findings(store=str(ROOT / "no-store"))
        tasks = {}
        for task in results.tasks:
            cells = results.cells.filter(results.cells["task"] == task)
            lengths = sorted(set(cells["length"].to_list()))
            runs: dict[str, dict[int, dict[int, float]]] = {}
            labels = {encoding: results.label(encoding) for encoding in results.encodings}
            for encoding, seed, length, accuracy in cells.select("encoding", "seed", "length", "accuracy").iter_rows():
                runs.setdefault(results.label(encoding), {}).setdefault(seed, {})[length] = round(accuracy, 3)
            known = [label for encoding, label in labels.items() if encoding in FIRST_SHOWN and label in runs]
            tasks[task] = {
                "trained": results.trained[task][0],
                "lengths": lengths,
                "encodings": {
                    label: [[own.get(length) for length in lengths] for _, own in sorted(runs[label].items())]
                    for label in labels.values()
                    if label in runs
                },
                "names": {label: named for label in labels.values() if (named := by_period(label))},
                "colours": {label: colour(encoding) for encoding, label in labels.items() if label in runs},
                "shown": known if len(known) > 2 else list(labels.values()),
            }
        found[name] = {"question": study.file.question, "tasks": tasks}
    return f"window.LENGTHWISE_ROWS = {json.dumps(found, separators=(',', ':'))};\n"


GENERATED = {
    "reference/command-line.md": command_line,
    "reference/python.md": python_page,
    "reference/catalogue.md": catalogue,
    "results/leaderboard.md": leaderboard,
    "explore-data.js": explored_rows,
}
"""Pages that are made from the code; they are in the site and not in docs/."""
COPIED = {f"{name}.md": f"docs/project/{name.lower()}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")}
"""Files of the repository's root, and the pages that they become."""


def executed_notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """Run a notebook from a clean kernel; return it as a page of Markdown, and the files of its figures."""
    import nbformat
    from nbclient import NotebookClient
    from nbconvert import MarkdownExporter

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        # With several threads these tiny models wait for each other, ten times as long on a busy machine.
        alone = {**os.environ, "OMP_NUM_THREADS": "1"}
        client = NotebookClient(notebook, timeout=600, startup_timeout=300, resources={"metadata": {"path": folder}})
        client.execute(env=alone)
    for cell in notebook.cells:  # what libraries say on stderr (progress bars) is no part of a lesson
        kept = [one for one in cell.get("outputs", []) if one.get("name") != "stderr"]
        cell.update({"outputs": kept} if "outputs" in cell else {})
    text, resources = MarkdownExporter().from_notebook_node(
        notebook, {"unique_key": path.stem, "output_files_dir": f"{path.stem}-files"}
    )
    return f"{text.replace('.ipynb)', '.md)')}\n[Download this notebook]({path.name}).\n", resources["outputs"]


def linked(text: str, source: str, target: str) -> str:
    """A page with links that work where it is now; what is not in the site loses its link and keeps its words."""

    def moved(found: re.Match[str]) -> str:
        words, address, anchor = found[1], found[2], found[3] or ""
        if address.startswith(("http:", "https:")):
            return found[0]
        to = os.path.normpath(Path(source).parent / address)
        to = COPIED.get(to, to)
        if not to.startswith("docs/"):
            return words
        return f"[{words}]({os.path.relpath(to, Path(target).parent)}{anchor})"

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]+)?\)", moved, text)


def titled(text: str) -> str:
    """A page whose blocks of code have their file's name as a title, where they are to be written to a file."""
    text = re.sub(r"^```py (\S+)$", r'```py title="\1"', text, flags=re.MULTILINE)
    return re.sub(r"^```(\w+) .*not run.*$", r"```\1", text, flags=re.MULTILINE)


def build(to: Path) -> str:
    """Write the site into a folder; return what the builder said."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        shutil.copytree(ROOT / "docs", there / "docs", ignore=shutil.ignore_patterns("paper"))
        for page in (there / "docs").rglob("*.md"):
            own = str(page.relative_to(there))
            page.write_text(titled(linked(page.read_text(), own, own)).replace(".ipynb)", ".md)"))
        for name, target in COPIED.items():
            (there / target).write_text(titled(linked((ROOT / name).read_text(), name, target)))
        for name, make in GENERATED.items():
            (there / "docs" / name).write_text(make())
        for path in sorted((there / "docs" / "tutorials").glob("*.ipynb")):
            text, figures = executed_notebook(path)
            path.with_suffix(".md").write_text(text)
            for name, data in figures.items():
                (path.parent / name).parent.mkdir(exist_ok=True)
                (path.parent / name).write_bytes(data)
        settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
        settings["plugins"][1]["mkdocstrings"]["handlers"]["python"]["paths"] = [str(ROOT / "src")]
        settings["plugins"][1]["mkdocstrings"]["handlers"]["python"]["options"]["extensions"] = [
            f"{ROOT / 'scripts' / 'examples_of_docstrings.py'}:Examples"
        ]
        (there / "mkdocs.yml").write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
        command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean"]
        done = subprocess.run(command, cwd=there, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        if done.returncode:
            raise SystemExit(f"the site was not built:\n{said}")
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(there / "site", to)
        return said


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    target = Path(sys.argv[1] if sys.argv[1:] else ROOT / "site")
    print(build(target))
    print(f"written: {target / 'index.html'}")

"""The tables of a report as LaTeX (booktabs), with n, unit and recipe in the caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lengthwise.folder import Folder
from lengthwise.reporting.tables import Tables, is_numeric_column
from lengthwise.reporting.words import describe_protocol
from lengthwise.spec import SpecError

_SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "÷": r"$\div$",
    "≥": r"$\geq$",
    "×": r"$\times$",
    "“": "``",
    "”": "''",
    "¼": r"$\frac14$",
    "½": r"$\frac12$",
    "¾": r"$\frac34$",
}


def escape_latex(text: object) -> str:
    """Escape text for LaTeX, so that e.g. `95 %` is printed as it is."""
    return "".join(_SPECIAL.get(character, character) for character in str(text))


def latex_table(lines: Sequence[Mapping[str, Any]], caption: str, label: str) -> str:
    """Return a booktabs table."""
    if not lines:
        return ""
    names = list(lines[0])
    columns = "".join("r" if is_numeric_column(lines, name) else "l" for name in names)
    head = " & ".join(escape_latex(name) for name in names)
    rows = "\n".join(" & ".join(escape_latex(line.get(name, "")) for name in names) + r" \\" for line in lines)
    return (
        "\\begin{table}[t]\n\\centering\n\\small\n"
        f"\\caption{{{escape_latex(caption)}}}\n\\label{{tab:{label}}}\n"
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{head} \\\\\n\\midrule\n{rows}\n\\bottomrule\n"
        "\\end{tabular}\n\\end{table}\n"
    )


def write_latex_tables(page: object, to: str | Path) -> list[Path]:
    """Write `tables.tex` (needs \\usepackage{booktabs}) and `protocol.tex`, a paragraph that describes the protocol."""
    if not isinstance(page, Tables):
        raise SpecError("tables in LaTeX are made of tasks with right answers alone; leave out --latex")
    study = page.found.study
    subject = page.found.short(page.found.tasks[0]) if page.single_task else f"{len(page.found.tasks)} tasks"
    parts = [
        latex_table(page.rank_table(), f"Encodings on {subject}. {page.rank_table_caption()}", f"{study.name}-ranks")
    ]
    if page.numbers.differences:
        caption = "Differences between encodings, paired by (task, seed)."
        parts.append(latex_table(page.difference_table(), caption, f"{study.name}-pairs"))
    for task in page.found.tasks:
        lines = [{key: line[key] for key in list(line)[:-1]} for line in page.task_summary_table(task)]
        name = f"{page.found.short(task)} ({task})"
        caption = f"{name}: exact match at seen and unseen lengths; median seed with its order-statistic interval."
        parts.append(latex_table(lines, caption, f"{study.name}-{''.join(c if c.isalnum() else '-' for c in task)}"))
    Folder(to).write("tables.tex", "\n".join(parts))
    Folder(to).write("protocol.tex", escape_latex(describe_protocol(page.found)) + "\n")
    return [Path(to) / "tables.tex", Path(to) / "protocol.tex"]

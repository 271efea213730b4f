"""`lengthwise study` check, plan, cost, run and retry: a question as a grid of runs; the rest is in `stored.py`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lengthwise.cli.terminal import Json, app, console, escape, print_table, say
from lengthwise.folder import OUTPUT
from lengthwise.progress import progress
from lengthwise.spec import SpecError

if TYPE_CHECKING:
    from lengthwise.interface.results import StudyResult
    from lengthwise.interface.study import Study
    from lengthwise.study.launch import ExecutorName
    from lengthwise.study.status import Status

study = typer.Typer(
    help="Plan, run and report a study: one question, many runs.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(study, name="study")

File = Annotated[str, typer.Argument(help="a study: a YAML file, or the name of a recipe, e.g. quickstart")]
StoreName = Annotated[str, typer.Option("--store", help="where runs are kept: a folder or any fsspec path")]
AllowCode = Annotated[bool, typer.Option("--allow-code", help="the study may run code from outside the package")]
Add = Annotated[list[str] | None, typer.Option("--add", help="one more encoding, e.g. my_pe.py:Mine")]
Tasks = Annotated[str | None, typer.Option("--tasks", help="only these tasks, e.g. copy,sort; quick for four")]
With = Annotated[Path | None, typer.Option("--with", help="a bundle whose runs count as done")]
Inline = Annotated[bool, typer.Option("--inline", help="one run at a time, in this process, without Ray")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="runs at a time; one per core")]
Address = Annotated[str | None, typer.Option("--address", help="a Ray cluster that is there, e.g. auto")]
NoRay = Annotated[bool, typer.Option("--no-ray", help="processes in place of Ray, as where it is not installed")]
To = Annotated[Path, typer.Option("--to", help="the folder of the figures")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress")]
Accept = Annotated[bool, typer.Option("--accept", help="report although committed runs come out differently here")]
STORE = "lengthwise-store"


def opened(
    file: str,
    add: list[str] | None = None,
    tasks: str | None = None,
    with_: Path | None = None,
    allow_code: bool = False,
) -> Study:
    """The study of a command."""
    from lengthwise.interface.study import Study

    return Study.read(file, add=add or (), tasks=tasks, results=with_, allow_code=allow_code)


@study.command()
def check(
    file: File,
    add: Add = None,
    tasks: Tasks = None,
    against: Annotated[Path | None, typer.Option(help="a bundle whose ids are recomputed, e.g. results/glance")] = None,
    rerun: Annotated[int, typer.Option(min=0, help="how many of its runs to execute again and compare")] = 0,
    store: StoreName = STORE,
    workers: Workers = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Find every mistake of a study before anything starts.

    One of each distinct task, encoding and model is built. With --against, the id of every run of a bundle is computed
    again from its options; with --rerun, some of its runs are executed again and their rows compared bit for bit.
    """
    if rerun and against is None:
        raise SpecError("--rerun executes runs of a bundle again; name the bundle with --against results/NAME")
    asked = opened(file, add, tasks, allow_code=allow_code)
    errors, checked = asked.check(), None
    if against is not None and not errors:
        checked = asked.check_against(against, rerun, store=store, workers=workers)
        errors = checked.errors
    if as_json:
        told = {} if errors else asked.planned.counted()
        told |= {} if checked is None else {"against": str(against), **checked.plain()}
        print(json.dumps({"study": asked.name, "errors": errors, **told}, indent=2))
    else:
        for error in errors:
            print(f"lengthwise: error: {error}", file=sys.stderr)
        if not errors:
            say(f"{asked.name} is sound: {_counts(asked.planned.counted())}")
        if checked is not None:
            say(str(checked))
    if errors:
        raise typer.Exit(2)


@study.command()
def plan(
    file: File,
    store: StoreName = STORE,
    with_: With = None,
    add: Add = None,
    tasks: Tasks = None,
    allow_code: AllowCode = False,
    every: Annotated[bool, typer.Option("--all", help="every run, not the first twenty")] = False,
    as_json: Json = False,
) -> None:
    """Print the runs of a study and which of them are done.

    It also proves that only the encoding differs between compared runs.
    """
    asked = opened(file, add, tasks, with_, allow_code)
    found = asked.plan(store)
    lines = found.runs
    if as_json:
        told = {"study": asked.name, "question": asked.file.question, **found.counts, "runs": lines}
        told |= {
            "waiting": found.waiting,
            "proof": found.proof.sentence,
            "only the encoding differs": found.proof.holds,
        }
        print(json.dumps({**told, "differs": found.proof.differs}, indent=2))
        return
    screen = console()
    screen.print(f"[bold]{escape(asked.name)}[/]: {escape(asked.file.question)}", highlight=False)
    say(f"{_counts(found.counts)}; {done_where(found.status, store, asked.counted())}")
    shown = lines if every else lines[:20]
    same = [axis for axis in ("positions", "model", "training") if len({line[axis] for line in lines}) == 1]
    if same and lines:
        screen.print("in all: " + ", ".join(f"{axis} {lines[0][axis]}" for axis in same), highlight=False)
    if shown:
        print_table([{key: value for key, value in line.items() if key not in same} for line in shown], False)
    if len(lines) > len(shown):
        screen.print(f"... and {len(lines) - len(shown):,} more; --all shows them", style="dim")
    if found.waiting:
        screen.print(f"{found.waiting:,} more runs get their name when their learning rate is chosen", highlight=False)
    by_rule = "; the learning rate is set by the rule" if asked.file.lr is not None else ""
    style = "bold" if found.proof.holds else "bold yellow"
    screen.print(escape(found.proof.sentence) + by_rule, style=style, highlight=False)


@study.command()
def cost(
    file: File,
    on: Annotated[str, typer.Option("--on", help="this machine, or an accelerator: a100, h100, l4, ...")] = "here",
    workers: Workers = None,
    add: Add = None,
    tasks: Tasks = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Estimate the FLOPs, memory, disk and hours of a study."""
    from lengthwise.study.drive import minutes

    asked = opened(file, add, tasks, allow_code=allow_code)
    with progress() as tell:
        found = asked.cost(on, workers, tell)
    lines: list[dict[str, object]] = [
        {
            "task": task,
            "encoding": encoding,
            "runs": len(listed),
            "parameters": listed[0].parameters,
            "tokens": listed[0].tokens,
            "FLOPs": f"{listed[0].flops + listed[0].evaluation_flops:.2e}",
            "memory": _size(listed[0].memory),
            "disk": _size(listed[0].disk),
            "one takes": minutes(listed[0].hours * 3600),
        }
        for (task, encoding), listed in found.kinds.items()
    ]
    whole, many, tuning = found.total, found.at_a_time, len(found.tuning)
    if as_json:
        told = {"study": asked.name, "on": on, "at a time": many, "kinds": lines, "all": vars(whole)}
        print(json.dumps({**told, "tuning runs": tuning}, indent=2))
        return
    print_table(lines, False)
    where = "this machine, calibrated" if on == "here" else f"{on}, by its published peak: not measured"
    runs, tuned = sum(map(len, found.kinds.values())), f" and {tuning:,} tuning runs" if tuning else ""
    console().print(
        f"in all ({where}): {runs:,} runs{tuned}, {whole.tokens:.3g} tokens, {whole.flops:.3g} FLOPs, "
        f"{_size(whole.disk)} of disk, {whole.hours:,.1f} device hours; with {many} at a time "
        f"{minutes(whole.wall_hours * 3600)} and {_size(whole.memory_together)} of memory",
        highlight=False,
    )


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


@study.command()
def run(
    context: typer.Context,
    file: File,
    store: StoreName = STORE,
    add: Add = None,
    tasks: Tasks = None,
    with_: With = None,
    accept: Accept = False,
    inline: Inline = False,
    workers: Workers = None,
    address: Address = None,
    no_ray: NoRay = False,
    allow_code: AllowCode = False,
    skip_verify: Annotated[bool, typer.Option("--skip-verify", help="run added encodings that fail verify")] = False,
    to: To = OUTPUT,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run what is missing of a study, then report.

    It runs on Ray where that is installed, and in worker processes otherwise. Started again, it does only what is
    missing.

    Exit code 0: complete; 1: some runs failed; 75: stopped and saved.
    """
    asked = opened(file, add, tasks, with_, allow_code)
    executor: ExecutorName = "inline" if inline else "processes" if no_ray and address is None else "auto"
    with progress() if not quiet else nullcontext(lambda words: None) as tell:
        ended = asked.run(
            store,
            workers=workers,
            executor=executor,
            address=address,
            retry=context.info_name == "retry",
            accept=accept,
            verify=not skip_verify,
            say=tell,
        )
    _report(ended, to / f"report-{asked.name}", as_json)
    if not ended.complete:
        raise typer.Exit(1)


study.command("retry", help="Run a study and try its failed runs once more.")(run)


def _report(ended: StudyResult, to: Path, as_json: bool) -> None:
    """The verdict, the curves and one table in the terminal; everything else on the page."""
    from lengthwise.cli.report import print_short

    tally, guard = ended.tally, None if ended.guard is None else ended.guard.sentence
    told: dict[str, Any] = {"study": ended.study.name, "done": len(tally.done), "of": tally.total}
    told |= {"failed": tally.failed, "waiting": tally.waiting, "guard": guard}
    try:
        made = ended.report(to)
    except SpecError as error:  # nothing is done: what failed is all there is to tell
        print(json.dumps(told, indent=2)) if as_json else print_failed(tally.failed, tally.waiting)
        say(str(error))
        return
    if as_json:
        print(json.dumps({**told, **made.page.plain(), "page": str(made.path)}, indent=2))
        return
    print_short(made.page)
    if rates := made.page.rates():
        say("learning rates, chosen at seen lengths with a seed that no run uses:", "bold")
        print_table(rates, False)
    if guard is not None:
        say(guard)
    for line in ended.study.file.deviations:
        say(f"deviation: {line}", "dim")
    print_failed(tally.failed, tally.waiting)
    say(f"page: {made.path}")
    say(f"{len(tally.done)} of {tally.total} done in {ended.store}")


def print_failed(failed: Mapping[str, str], waiting: int) -> None:
    """Runs that failed, with the reason of each; those that diverged would diverge again and are not retried."""
    diverged = {key for key, why in failed.items() if why.startswith("diverged ") or " diverged at step " in why}
    for key, why in list(failed.items())[:20]:
        say(f"{'diverged' if key in diverged else 'failed'} {key}: {why}", "bold red")
    if len(failed) > 20:
        say(f"... and {len(failed) - 20} more failed")
    if set(failed) - diverged:
        say("lengthwise study retry tries the failed ones once more", "dim")
    if waiting:
        say(f"{waiting} runs have no learning rate yet: a tuning run they need is not done")


def done_where(found: Status, store: str, with_: Path | None) -> str:
    """How many are done, and where: in the store, or in the bundle that is counted."""
    if with_ is None:
        return f"{len(found.done):,} done in {store}"
    return f"{len(found.done) - found.given:,} done in {store}, {found.given:,} in {with_}"


def _counts(counts: Mapping[str, int]) -> str:
    parts = [f"{counts['runs']:,} runs"]
    if counts["tuning"]:
        parts.append(f"{counts['tuning']:,} tuning runs")
    if counts["evaluations"]:
        parts.append(f"{counts['evaluations']:,} evaluations")
    return " and ".join(parts)

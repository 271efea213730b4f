"""`lengthwise study`: a question as a grid of runs. Here: check, plan, run, retry; `stored.py` has what is there."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lengthwise.cli.terminal import Json, app, console, escape, print_table, say, working
from lengthwise.spec import SpecError

if TYPE_CHECKING:
    from lengthwise.study.add import Guard
    from lengthwise.study.drive import Tally
    from lengthwise.study.plan import Item, Planned
    from lengthwise.study.status import Status
    from lengthwise.study.store import Bundle, Store

study = typer.Typer(help="A question as a grid of runs.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(study, name="study")

File = Annotated[str, typer.Argument(help="a study: a YAML file, or the name of a recipe, e.g. quickstart")]
StoreName = Annotated[str, typer.Option("--store", help="where runs are kept: a folder or any fsspec path")]
AllowCode = Annotated[bool, typer.Option("--allow-code", help="the study may run code from outside the package")]
Add = Annotated[list[str] | None, typer.Option("--add", help="one more encoding, e.g. my_pe.py:Mine")]
Tasks = Annotated[str | None, typer.Option("--tasks", help="only these tasks, e.g. copy,sort; quick for four")]
With = Annotated[Path | None, typer.Option("--with", help="a bundle whose runs count as done")]
Inline = Annotated[bool, typer.Option("--inline", help="one driver that works in its own process, without Ray")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="runs at a time; one per core")]
Address = Annotated[str | None, typer.Option("--address", help="a Ray cluster that is there, e.g. auto")]
NoRay = Annotated[bool, typer.Option("--no-ray", help="processes in place of Ray, as where it is not installed")]
To = Annotated[Path, typer.Option("--to", help="the folder of the figures")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress")]
Accept = Annotated[bool, typer.Option("--accept", help="report although committed runs come out differently here")]
STORE = "lengthwise-store"


@study.command()
def check(
    file: File, add: Add = None, tasks: Tasks = None, allow_code: AllowCode = False, as_json: Json = False
) -> None:
    """Find every mistake of a study before anything starts; one of each distinct component is built."""
    from lengthwise.study.check import check as find

    planned = planned_of(file, add, tasks, allow_code)
    errors = find(planned, allow_code=True)  # what was not allowed has been refused
    if as_json:
        counts = {} if errors else planned.counted()
        print(json.dumps({"study": planned.study.name, "errors": errors, **counts}, indent=2))
    else:
        for error in errors:
            print(f"lengthwise: error: {error}", file=sys.stderr)
        if not errors:
            console().print(f"{planned.study.name} is sound: {_counts(planned)}")
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
    """Print the runs of a study, what is done of them, and the proof that only the encoding differs."""
    from lengthwise.study.add import counted_as_done
    from lengthwise.study.plan import prove

    planned = planned_of(file, add, tasks, allow_code)
    with_ = counted_as_done(planned.study, with_, add)
    found = status_of(planned, store, with_)
    listed, waiting = planned.items(tuned_of(planned, store, with_))
    done = {item.key for item in found.done}
    lines: list[dict[str, Any]] = [
        {**item.point.labels(), "kind": item.kind, "run": item.key, "done": item.key in done} for item in listed
    ]
    proof = prove(planned.provisional(planned.points) if planned.study.lr is not None else listed)
    if as_json:
        told = {"study": planned.study.name, "question": planned.study.question, **planned.counted(), "runs": lines}
        told |= {"waiting": len(waiting), "proof": proof.sentence, "only the encoding differs": proof.holds}
        print(json.dumps({**told, "differs": proof.differs}, indent=2))
        return
    screen = console()
    screen.print(f"[bold]{escape(planned.study.name)}[/]: {escape(planned.study.question)}", highlight=False)
    say(f"{_counts(planned)}; {done_where(found, store, with_)}")
    shown = lines if every else lines[:20]
    same = [axis for axis in ("positions", "model", "training") if len({line[axis] for line in lines}) == 1]
    if same and lines:
        screen.print("in all: " + ", ".join(f"{axis} {lines[0][axis]}" for axis in same), highlight=False)
    if shown:
        print_table([{key: value for key, value in line.items() if key not in same} for line in shown], False)
    if len(lines) > len(shown):
        screen.print(f"... and {len(lines) - len(shown):,} more; --all shows them", style="dim")
    if waiting:
        screen.print(f"{len(waiting):,} more runs get their name when their learning rate is chosen", highlight=False)
    by_rule = "; the learning rate is set by the rule" if planned.study.lr is not None else ""
    screen.print(escape(proof.sentence) + by_rule, style="bold" if proof.holds else "bold yellow", highlight=False)


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
    """What a study will take: FLOPs, tokens, memory, disk and device hours, per run and in all."""
    from lengthwise.study.cost import Cost, accelerator, calibrated, cost_of, total
    from lengthwise.study.drive import minutes

    planned, kinds = planned_of(file, add, tasks, allow_code), dict[tuple[str, str], list[Cost]]()
    with working() as tell:
        machine = calibrated(planned.study.resources.threads, tell) if on == "here" else accelerator(on)
        tuning = [cost_of(item.plan, machine) for tried in planned.tuning.values() for item in tried]
        for cell in planned.points:
            kinds.setdefault((cell.task, cell.encoding), []).append(cost_of(planned.plan(cell), machine))
    many = workers or ((os.cpu_count() or 1) if on == "here" else 1)
    runs = [one for listed in kinds.values() for one in listed]
    whole = total([*tuning, *runs], many)
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
        for (task, encoding), listed in kinds.items()
    ]
    if as_json:
        told = {"study": planned.study.name, "on": on, "at a time": many, "kinds": lines, "all": vars(whole)}
        print(json.dumps({**told, "tuning runs": len(tuning)}, indent=2))
        return
    print_table(lines, False)
    where = "this machine, calibrated" if on == "here" else f"{on}, by its published peak: not measured"
    tuned = f" and {len(tuning):,} tuning runs" if tuning else ""
    console().print(
        f"in all ({where}): {len(runs):,} runs{tuned}, {whole.tokens:.3g} tokens, {whole.flops:.3g} FLOPs, "
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
    to: To = Path("."),
    quiet: Quiet = False,
    checked: Annotated[bool, typer.Option("--checked", hidden=True)] = False,
    as_json: Json = False,
) -> None:
    """Do what is missing of a study, on Ray or without it, and report. Started again, it does only what is missing.

    Exit code 0: complete; 1: some runs failed; 75: stopped and saved.
    """
    from lengthwise.study.add import counted_as_done, guard_store, guarded, guards
    from lengthwise.study.check import check as find
    from lengthwise.study.launch import Launch
    from lengthwise.study.store import Bundle, Store

    whole = planned_of(file, add, tasks, allow_code)
    with_ = counted_as_done(whole.study, with_, add)
    bundle = None if with_ is None else Bundle(with_)
    planned = _only(whole, add or []) if add and bundle is not None else whole
    if not checked and (errors := find(planned, allow_code=True)):
        for error in errors:
            print(f"lengthwise: error: {error}", file=sys.stderr)
        raise typer.Exit(2)
    if not checked and not skip_verify:
        _verified(add or [], quiet)
    kept = Store(store)
    launch = Launch(file, kept, inline, workers, address, no_ray, allow_code, add or [], tasks, with_, checked)
    guard: Guard | None = None
    with working() if not quiet else nullcontext(lambda words: None) as tell:
        if add and bundle is not None and not checked:
            plain = planned_of(file, None, tasks, allow_code)
            again_made = guards(plain, bundle)
            if not again_made:
                raise SpecError(
                    f"{with_} has no run of this study as it is now (another version?), so nothing guards the "
                    "comparison; run the whole study here instead, without --with"
                )
            beside = guard_store(kept)
            _say(quiet, f"{len(again_made)} committed runs are made again first, as a guard")
            if launch.drive(plain, beside, tell, {}, only=again_made) is None:
                _stopped(planned, kept, with_)
            guard = guarded(again_made, bundle, beside)
            _say(quiet, guard.sentence)
            guard.refuse(accept)
        given = {} if bundle is None else bundle.summaries
        tally = launch.drive(planned, kept, tell, given, context.info_name == "retry")
    if checked:  # one of several drivers: the one that started it reports
        raise typer.Exit(75 if tally is None else 0)
    if tally is None:
        _stopped(planned, kept, with_)
    assert tally is not None
    from lengthwise.cli.report import command_of

    command = command_of(file, store, with_, add, tasks)
    _report(whole, kept, bundle, tally, guard, to, as_json, command, add or [])
    if len(tally.done) < tally.total:
        raise typer.Exit(1)


study.command("retry", help="Like run, and the runs that failed are tried once more.")(run)


def _verified(add: list[str], quiet: bool) -> None:
    """Stop before anything is trained where an added encoding from outside the package does not conform."""
    from lengthwise.cli.encodings import print_verified
    from lengthwise.encoding import ENCODINGS
    from lengthwise.spec import specs

    named = [spec for text in add for spec in specs(text) if spec.name not in ENCODINGS]
    if not named:
        return
    from lengthwise.conformance import verify

    for spec in dict.fromkeys(named):
        _say(quiet, f"verifying {spec}")
        found = verify(spec)
        if found.failed:
            print_verified(found)
            raise SpecError(f"{spec} does not conform, so it is not trained; mend it, or give --skip-verify")


def _stopped(planned: Planned, store: Store, with_: Path | None) -> None:
    """Say how far it is; the runs that were being done have saved themselves."""
    found = status_of(planned, store, with_)
    print(
        f"stopped with {len(found.done)} of {found.total} done; what was running is saved, the same command goes on",
        file=sys.stderr,
    )
    raise typer.Exit(75)


def _say(quiet: bool, words: str) -> None:
    if not quiet:
        print(words, file=sys.stderr)


def _report(
    planned: Planned,
    store: Store,
    bundle: Bundle | None,
    tally: Tally,
    guard: Guard | None,
    to: Path,
    as_json: bool,
    command: str,
    focus: list[str],
) -> None:
    """The verdict, the curves and one table in the terminal; everything else on the page."""
    from lengthwise.cli.report import print_short
    from lengthwise.reporting.findings import gather
    from lengthwise.reporting.page import Page
    from lengthwise.study.add import written

    told: dict[str, Any] = {"study": planned.study.name, "done": len(tally.done), "of": tally.total}
    told |= {"failed": tally.failed, "waiting": tally.waiting, "guard": None if guard is None else guard.sentence}
    try:
        found = gather(
            planned, store, bundle, failed=tally.failed, focus=[written(name) for name in focus], guard=told["guard"]
        )
    except SpecError as error:  # nothing is done: what failed is all there is to tell
        print(json.dumps(told, indent=2)) if as_json else print_failed(tally.failed, tally.waiting)
        say(str(error))
        return
    page = Page(found, command)
    where = to / f"report-{planned.study.name}"
    page.write(where)
    if as_json:
        print(json.dumps({**told, **page.plain(), "page": str(where / "index.html")}, indent=2))
        return
    print_short(page)
    if rates := page.rates():
        say("learning rates, chosen at seen lengths with a seed that no run uses:", "bold")
        print_table(rates, False)
    if guard is not None:
        say(guard.sentence)
    for line in planned.study.deviations:
        say(f"deviation: {line}", "dim")
    print_failed(tally.failed, tally.waiting)
    say(f"page: {where / 'index.html'}")
    say(f"{len(tally.done)} of {tally.total} done in {store}")


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


# --- what the verbs share --------------------------------------------------------------------------------------------


def planned_of(file: str, add: list[str] | None, tasks: str | None, allow_code: bool) -> Planned:
    from lengthwise.study.add import chosen_tasks, read
    from lengthwise.study.check import refuse_foreign
    from lengthwise.study.plan import Planned

    made = read(file, add or [])
    planned = Planned(made, None if tasks is None else chosen_tasks(made, tasks))
    own = [name for name in planned.outside() if name not in _said(add)]
    refuse_foreign(own, allow_code)
    return planned


def _said(add: list[str] | None) -> set[str]:
    """Names that were given on the command line, which is their own consent."""
    from lengthwise.spec import specs

    return {spec.name for text in add or [] for spec in specs(text)}


def _only(planned: Planned, encodings: list[str]) -> Planned:
    from lengthwise.study.add import written
    from lengthwise.study.plan import Planned

    return Planned(planned.study, planned._tasks, map(written, encodings))


def _counts(planned: Planned) -> str:
    counts = planned.counted()
    parts = [f"{counts['runs']:,} runs"]
    if counts["tuning"]:
        parts.append(f"{counts['tuning']:,} tuning runs")
    if counts["evaluations"]:
        parts.append(f"{counts['evaluations']:,} evaluations")
    return " and ".join(parts)


def status_of(planned: Planned, store: str | Store, with_: Path | None) -> Status:
    from lengthwise.study.status import status as look
    from lengthwise.study.store import Bundle, Store

    given = None if with_ is None else Bundle(with_).summaries
    return look(planned, store if isinstance(store, Store) else Store(store), given)


def tuned_of(planned: Planned, store: str, with_: Path | None) -> dict[str, dict[str, Any]]:
    """The summaries of the tuning runs that are done."""
    from lengthwise.study.store import Bundle, Store

    keys = [item.key for tried in planned.tuning.values() for item in tried]
    return {**Store(store).summaries(keys), **({} if with_ is None else Bundle(with_).summaries)}


def rows_of(planned: Planned, store: Store, bundle: Bundle | None, tell: Any = None) -> tuple[list[Item], Any]:  # noqa: ANN401
    """All items, and the rows of those that are done, here or in the bundle."""
    import polars as pl

    with_ = None if bundle is None else Path(str(bundle.folder))
    items, _ = planned.items(tuned_of(planned, str(store), with_))
    found = store.rows([item.key for item in items if item.kind != "tuning"], tell)
    if bundle is not None:
        wanted = {item.run for item in items if item.kind != "tuning"} - set(found["run"].to_list())
        found = pl.concat([found, bundle.rows.filter(pl.col("run").is_in(list(wanted)))])
    return items, found

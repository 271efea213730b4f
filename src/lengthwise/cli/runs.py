"""`lengthwise train`, `evaluate`, `compare`, `ask` and `export-model`: runs, and what they show."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

import lengthwise as lw
from lengthwise.cli.terminal import LARGEST_SEED, Json, app, progress_callback, say, show
from lengthwise.folder import OUTPUT
from lengthwise.progress import progress

TaskName = Annotated[str, typer.Argument(help="a task, e.g. copy:variant=same or my_task.py:Mine")]
RunName = Annotated[str, typer.Argument(help="a run: its folder, its id, or the beginning of its id")]
Positions = Annotated[str, typer.Option(help="the kind of positions, e.g. randomized:limit=256")]
Model = Annotated[str, typer.Option(help="a model preset, e.g. laptop:layers=3 or paper")]
Training = Annotated[str, typer.Option(help="a training preset, e.g. laptop:steps=500:lr=0.002 or paper")]
Store = Annotated[str, typer.Option(help="where runs are kept: a folder or any fsspec path")]
Threads = Annotated[int | None, typer.Option(min=1, help="threads of torch; recorded with the run")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps or xpu")]
Checkpoint = Annotated[str, typer.Option(help="last, best, earliest_best, 25%, 50% or 75%")]
Lengths = Annotated[
    str | None, typer.Option(help="e.g. 8,16,32, 17-40 or 64..4096:x2; all that are tested, unless given")
]
Allow = Annotated[list[str] | None, typer.Option(help="parameters that may be missing or left over: 'encodings.*'")]
AllowCode = Annotated[bool, typer.Option("--allow-code", help="the run may execute code from outside the package")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress")]
Dtype = Annotated[Literal["auto", "fp32", "bf16"], typer.Option(help="bf16 is mixed precision, and another run")]
ForwardDtype = Annotated[Literal["auto", "fp32", "bf16"], typer.Option(help="of forward passes; fp32 unless bf16")]
STORE = "lengthwise-store"


@app.command()
def train(
    task: TaskName,
    encoding: Annotated[str, typer.Option(help="an encoding; commas separate one per layer")] = "nope",
    positions: Positions = "consecutive",
    model: Model = "laptop",
    training: Training = "laptop",
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="of initialisation, data, order and dropout")] = 0,
    stream: Annotated[list[str] | None, typer.Option(help="the seed of one stream alone, e.g. order=7")] = None,
    start: Annotated[str | None, typer.Option(help="begin with the weights of this run; @best for its best")] = None,
    allow: Allow = None,
    store: Store = STORE,
    threads: Threads = None,
    shard: Annotated[bool, typer.Option("--shard", help="shard the model over the processes (FSDP2)")] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    compile: Annotated[bool, typer.Option("--compile", help="compile feed-forward layers; pays in long runs")] = False,
    device_batch: Annotated[int | None, typer.Option(min=1, help="rows computed at once, if memory is short")] = None,
    recompute: Annotated[bool, typer.Option("--recompute", help="keep no activations: less memory, more time")] = False,
    checkpoint_every: Annotated[int | None, typer.Option(min=1, help="steps between checkpoints")] = None,
    logger: Annotated[list[str] | None, typer.Option(help="tensorboard or wandb")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train one run on short sequences, then test it on long ones.

    Started again, a run that is done is only shown; one that was stopped goes on. Exit code 75: stopped and saved.
    """
    run = lw.train(
        task,
        encoding,
        positions=positions,
        model=model,
        training=training,
        seed=seed,
        streams=stream,
        start=start,
        allow=allow or (),
        store=store,
        threads=threads,
        shard=shard,
        device=device,
        dtype=dtype,
        compile=compile,
        device_batch=device_batch,
        recompute=recompute,
        checkpoint_every=checkpoint_every,
        loggers=logger or (),
        quiet=quiet,
    )
    if os.environ.get("RANK", "0") != "0":
        return  # the first process speaks for all
    if not run.fresh and not as_json:
        say(f"run {run.id} is done already; another --seed or --store makes another run")
    show(lw.summarize(run), as_json)


@app.command()
def compare(
    task: TaskName,
    encodings: Annotated[str, typer.Option(help="encodings, separated by commas")] = "nope,alibi,rope",
    seeds: Annotated[int, typer.Option(min=1, help="seeds 0, 1, ... of each")] = 3,
    positions: Positions = "consecutive",
    model: Model = "laptop",
    training: Training = "laptop",
    store: Store = STORE,
    threads: Threads = None,
    workers: Annotated[int | None, typer.Option(min=1, help="runs at a time, one thread each; one per core")] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    to: Annotated[Path, typer.Option(help="the folder of the figure")] = OUTPUT,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train encodings side by side on one task and compare them.

    Each encoding is trained with each seed, on this machine; the figure shows accuracy against length.
    """
    found = lw.compare(
        task,
        encodings,
        seeds=seeds,
        positions=positions,
        model=model,
        training=training,
        store=store,
        workers=workers,
        threads=threads or 1,
        device=device,
        dtype=dtype,
        say=progress_callback(quiet),
    )
    files = {path.suffix[1:]: str(path) for path in found.draw(to)}
    show(found, as_json, figure=files["svg"], page=files["html"])
    if not as_json:
        say(f"page: {files['html']}; figure: {files['svg']}, {files['png']}")


@app.command()
def evaluate(
    run: RunName,
    lengths: Lengths = None,
    encoding: Annotated[
        str | None, typer.Option(help="another encoding at test time, e.g. rope:scaling=yarn:factor=4")
    ] = None,
    temperature: Annotated[
        str | None, typer.Option(help="attention temperature at test time, e.g. log-n or yarn:factor=4")
    ] = None,
    checkpoint: Checkpoint = "last",
    examples: Annotated[int | None, typer.Option(min=1, help="of each length; 256 unless given")] = None,
    stop_after_zeros: Annotated[
        int | None, typer.Option(min=1, help="stop after so many lengths in a row without a right answer")
    ] = None,
    allow: Allow = None,
    store: Store = STORE,
    device: Device = "auto",
    dtype: ForwardDtype = "auto",
    save: Annotated[bool, typer.Option("--save", help="put the rows beside the run's own")] = False,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Evaluate a stored run again, without training.

    Lengths, encoding scaling and temperature may differ from those of training.
    """
    opened = lw.load_run(run, store, allow_code=allow_code)
    changed = {"encoding": encoding, "temperature": temperature, "stop_after_zeros": stop_after_zeros}
    with progress() as tell:
        how = {"checkpoint": checkpoint, "examples": examples, "allow": allow or (), "say": tell}
        found = opened.evaluate(lengths, device=device, dtype=dtype, **how, **changed)
    if save:
        opened.store_evaluation(found)
    show(found, as_json)
    if as_json:
        return
    told = f"{opened.id}, {found.rows['evaluation'][0]}, {checkpoint}"
    say(told if lengths is not None else f"{told}: reach {lw.reach(found.rows)}")
    if encoding is not None:
        say("\n".join(found.effective), "dim")


@app.command()
def ask(
    run: RunName,
    prompt: Annotated[str, typer.Argument(help='what to ask, e.g. "3 1 2"')],
    checkpoint: Checkpoint = "last",
    store: Store = STORE,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Ask a trained model and print its answer and the right one.

    Where they differ, the first differing token is named.
    """
    show(lw.ask(run, prompt, checkpoint=checkpoint, store=store, allow_code=allow_code), as_json)


@app.command("export-model")
def export_model(
    run: RunName,
    folder: Annotated[Path, typer.Argument(help="the folder to write")],
    checkpoint: Checkpoint = "last",
    store: Store = STORE,
    allow_code: AllowCode = False,
) -> None:
    """Write a run's model as a Hugging Face folder.

    The folder has the weights, the config with the end token, and the tokenizer.
    """
    show(lw.export_model(run, folder, checkpoint=checkpoint, store=store, allow_code=allow_code))


@app.command()
def selftest(
    device: Device = "auto",
    to: Annotated[Path, typer.Option(help="the file with everything, for a bug report")] = OUTPUT / "selftest.json",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Check that this machine's device computes what the CPU does.

    Every encoding is compared with float64 on the CPU, a training is resumed, and steps are timed.
    """
    found = lw.selftest(device, say=progress_callback(quiet))
    show(found, as_json)
    path = found.write(to)
    if not as_json:
        say(f"written to {path}")
    if not found.passed:
        raise typer.Exit(1)

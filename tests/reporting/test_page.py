"""The page in a real browser: nothing is fetched, nothing runs that was not written by us, it fits a phone."""

import os
import re
import time
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from lengthwise.reporting.numbers import compute_numbers
from lengthwise.reporting.page import Page
from lengthwise.reporting.tables import Tables
from lengthwise.reporting.words import verdict
from tests.reporting.made import FIVE, TASKS, evil, findings, study

SCRIPT = "<script>window.planted = 1; fetch('http://127.0.0.1:9/x')</script><img src=x onerror='window.planted=1'>"


def opened(browser, path: Path, width: int, scheme: str, shot: Path | None = None) -> dict:
    """What a browser finds on the page."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, errors, asked = context.new_page(), [], []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "request", lambda request: asked.append(request.url) if not request.url.startswith(("file:", "data:")) else None
    )
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    page.evaluate("document.querySelectorAll('img').forEach(one => one.loading = 'eager')")
    page.wait_for_timeout(400)
    found = {
        "errors": errors,
        "asked": asked,
        "wide": page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"),
        "no alt": page.evaluate("[...document.images].filter(one => !one.alt).length"),
        "images": page.evaluate("document.images.length"),
        "broken": page.evaluate("[...document.images].filter(one => !one.naturalWidth).length"),
        "planted": page.evaluate("window.planted || 0"),
        "scripts": page.evaluate("document.scripts.length"),
        "background": page.evaluate("getComputedStyle(document.body).backgroundColor"),
    }
    if shot is not None:
        page.screenshot(path=str(shot), full_page=True)
    context.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280], ids=["phone", "desktop"])
def test_the_page_opens_anywhere(browser, tmp_path, width, scheme):
    Page(findings(), command="lengthwise study run made").write(tmp_path, with_figures=False)
    shots = os.environ.get("LENGTHWISE_SHOTS")
    shot = Path(shots) / f"page-{width}-{scheme}.png" if shots else None
    found = opened(browser, tmp_path / "index.html", width, scheme, shot)
    assert not found["errors"] and not found["asked"] and found["wide"] <= 0
    assert found["images"] >= 8 and not found["no alt"] and not found["broken"]
    assert found["scripts"] == 0
    dark = sum(int(part) for part in re.findall(r"\d+", found["background"])[:3]) < 300
    assert dark == (scheme == "dark")


@pytest.mark.slow
def test_planted_scripts_do_not_run(browser, tmp_path):
    page = Page(evil(SCRIPT), command=SCRIPT)
    page.write(tmp_path, with_figures=False)
    text = (tmp_path / "index.html").read_text()
    assert "<script" not in text and "onerror='" not in text.replace("&#39;", "'").split("<main>")[0]
    assert "&lt;script&gt;" in text, "it is shown, as text"
    found = opened(browser, tmp_path / "index.html", 1280, "light")
    assert found["planted"] == 0 and found["scripts"] == 0 and not found["asked"]


@pytest.mark.slow
def test_what_is_written_is_escaped_without_a_browser_too(tmp_path):
    text = Page(evil(SCRIPT), command=SCRIPT).html()
    assert "<script" not in text and "<img src=x" not in text


@pytest.mark.slow
def test_the_page_says_what_the_study_found():
    page = Page(findings())
    text = page.html()
    assert "which encoding reaches further" in text.lower()
    assert "NoPE has the highest mean accuracy at unseen lengths" in page.verdict
    assert "these tasks, other seeds" in text and "other tasks like these" in text
    assert "has one hash" in text  # the proof
    assert "http" not in re.sub(r"http://www\.w3\.org/\S+", "", text.replace("%20", " ")).replace("%3A", ":")


def test_one_task_has_medians_and_never_a_p():
    page = Page(findings(study(TASKS[:1])))
    assert "p (Holm)" not in page.html() and "median" in page.verdict
    assert all("p (Holm)" not in line for line in page.difference_table())


@pytest.mark.slow
def with_accuracies(found, accuracies):
    """The findings with another share of right answers; `accuracies` gets the columns of a row."""
    right = (pl.col("examples") * accuracies).round().cast(pl.Int64)
    rest = {name: pl.lit(0, pl.Int64) for name in ("early", "late", "cut")}
    rows = found.rows.with_columns(correct=right, correct_content=right, wrong=pl.col("examples") - right, **rest)
    return replace(found, rows=rows)


def test_who_leads_is_decided_by_accuracy_and_not_by_who_learned():
    rope = pl.col("encoding") == "rope"
    shares = pl.when(rope).then(0.8).when("seen").then(1.0).otherwise(0.3)
    found = with_accuracies(findings(study(TASKS[1:2], ["nope", "rope"], seeds=5)), shares)
    told = verdict(found, compute_numbers(found))
    assert "not learned by RoPE (0 of 5 seeds learned)" in told and "RoPE leads with 0.801" in told


def test_the_column_of_what_was_learned_follows_the_rule_for_all_seeds():
    """Three of five seeds are too few, although the median seed learned."""
    found = with_accuracies(
        findings(study(TASKS, ["nope", "rope"], seeds=5)),
        pl.when(pl.col("seen") & (pl.col("seed") < 3)).then(1.0).otherwise(0.5),
    )
    lines = Tables(found).rank_table()
    assert [line["learned"] for line in lines] == ["0 of 3", "0 of 3"]


def test_one_seed_says_so():
    page = Page(findings(study(TASKS, seeds=1)))
    assert any("no seed interval" in line for line in page.warnings())
    assert "no seed interval" in page.html()


def test_missing_runs_are_missing_and_not_zero():
    from lengthwise.study.plan import Planned

    made = study(TASKS[:2], FIVE[:3])
    items = Planned(made).items({})[0]
    lost = [item for item in items if not (item.point.encoding == "nope" and item.point.task == TASKS[0])]
    page, incomplete = Page(findings(made, lost)), Page(findings(made, lost, wanted=items))
    learned = [line["learned"] for one in (page, incomplete) for line in one.rank_table() if line["encoding"] == "NoPE"]
    whole = Page(findings(made, items))
    assert (TASKS[0], "nope") not in page.numbers.cells
    # The mean is over the tasks that all have: a 0 in place of what is missing would lower it.
    assert page.numbers.means["nope"].by_task.keys() == {TASKS[1]}
    assert abs(page.numbers.means["nope"].value - page.numbers.cells[TASKS[1], "nope"].mean.value) < 1e-9
    assert learned == ["1 of 1", "1 of 2"]  # of the tasks that are planned for it
    assert whole.numbers.means["nope"].by_task.keys() == set(TASKS[:2])


def test_those_that_tie_share_the_places_they_take():
    page = Page(findings(study(TASKS[:2], FIVE)))
    flat = page.numbers.scores.with_columns(unseen=0.5, correct=200, examples=256, chance=0.0)
    object.__setattr__(page.numbers, "scores", flat)
    for shares in page._rank_shares().values():
        assert all(abs(share - 0.2) < 1e-9 for share in shares)


def test_planned_runs_that_are_not_there_are_counted_as_missing():
    from lengthwise.study.plan import Planned

    made = study(TASKS[:2], FIVE[:3])
    items = Planned(made).items({})[0]
    lost = [item for item in items if not (item.point.encoding == "nope" and item.point.seed == 2)]
    page = Page(findings(made, lost, wanted=items))
    (line,) = [line for line in page.rank_table() if line["encoding"] == "NoPE"]
    assert line["missing"] == 2
    whole = [item for item in items if not (item.point.encoding == "t5" and item.point.task == TASKS[0])]
    told = Page(findings(made, whole, wanted=items)).warnings()
    assert any("In no mean" in words and "copy same" in words for words in told)


def test_what_was_learned_by_heart_and_older_test_sets_are_said():
    found = findings(study(TASKS[:2], ["nope", "rope"]))
    assert "trained on" not in Page(found).task_summary_table(TASKS[0])[0]
    assert not [line for line in Page(found).warnings() if "by heart" in line or "test sets" in line]
    shares = {"nope": 1.0, "rope": 0.5}
    own = pl.col("encoding").replace_strict(shares) * pl.col("examples")
    seen = found.rows.filter(pl.col("split") == "test_seen")
    # RoPE answers half of the others and all that it was trained on; NoPE all of both.
    tested = seen.with_columns(correct=own.cast(pl.Int64))
    trained = seen.with_columns(pl.lit("train").alias("split"), correct=pl.col("examples"))
    rows = pl.concat([found.rows.filter(pl.col("split") != "test_seen"), tested, trained])
    records = {
        item.key: {"run": {"recorded": {"sets": 3} if number else {}}, "done": {}}
        for number, item in enumerate(found.items)
    }
    page = Page(replace(found, rows=rows, records=records))
    lines = {line["encoding"]: line for line in page.task_summary_table(TASKS[0])}
    assert (lines["RoPE"]["trained on"], lines["RoPE"]["seen"]) == ("1.000", "0.500")
    (told,) = [line for line in page.warnings() if "by heart" in line]
    assert "RoPE on copy same 1.00 and 0.50" in told and "NoPE" not in told
    (older,) = [line for line in page.warnings() if "different test sets" in line]
    assert "versions 2, 3" in older


def test_runs_that_were_computed_in_different_ways_are_said_to_be():
    found = findings()
    alike = {item.key: {"run": {"recorded": {}}, "done": {}} for item in found.items}
    assert not [line for line in Page(replace(found, records=alike)).warnings() if "different ways" in line]
    first = {"run": {"recorded": {"device": "cuda", "compile": True}, "options": {"training": {"autocast": True}}}}
    page = Page(replace(found, records={**alike, found.items[0].key: {**first, "done": {}}}))
    (told,) = [line for line in page.warnings() if "different ways" in line]
    assert told.endswith("rounds differently: CPU, fp32; CUDA, bf16, compiled.")
    assert {"what": "computed on", "value": "CPU, fp32; CUDA, bf16, compiled"} in page.costs()


def test_the_rank_table_has_one_ranking():
    page = Page(findings(study(TASKS, [*FIVE, "rope:fraction=0.25"])))
    shown = {line["encoding"]: line["MRR"] for line in page.rank_table()}
    ours = next(one for words, one in page.numbers.mrr.items() if words.startswith("ours"))
    assert shown["ALiBi"] == f"{ours.values['ALiBi']:.3f}" and shown["RoPE ¼"] == "–"
    assert abs(sum(float(value) for value in shown.values() if value != "–") - 2.2833) < 0.003


def test_listing_order_changes_no_number():
    from lengthwise.study.plan import Planned

    made = study()
    items = Planned(made).items({})[0]
    one, other = Page(findings(made, items)), Page(findings(made, items))
    object.__setattr__(other.found, "rows", other.found.rows.reverse())
    shuffled = Page(other.found)
    assert one.plain()["means"] == shuffled.plain()["means"] and one.plain()["ranks"] == shuffled.plain()["ranks"]


@pytest.mark.slow
def test_the_same_findings_give_the_same_page():
    assert Page(findings()).html() == Page(findings()).html()


@pytest.mark.slow
def test_many_encodings_become_bands_and_the_page_stays_small(tmp_path):
    names = [f"t5:buckets={n}" for n in range(4, 18)]
    page = Page(findings(study(TASKS[:1], names, seeds=3)))
    assert len(page.html()) < 3_000_000


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(240)
def test_ten_thousand_runs_are_reported_in_a_minute(tmp_path, figure):
    """10,000 runs × 40 lengths, 40 encodings, 50 tasks, in a process of its own whose memory is looked at."""
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "tests.reporting.many", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seconds, memory, size = (float(word) for word in done.stdout.split())
    figure(f"10,000 runs reported in {seconds:.1f} s of a core, {memory / 1e9:.2f} GB, page of {size / 1e6:.1f} MB")
    assert seconds < 60 and memory < 2e9


@pytest.mark.slow
def test_five_hundred_runs_fit_in_three_megabytes(figure):
    tasks = [f"copy:longest={n}:variant=same" for n in range(8, 25)]
    began = time.perf_counter()
    page = Page(findings(study(tasks, [*FIVE, "rope:fraction=0.25"], seeds=5)))
    size = len(page.html().encode())
    figure(f"510 runs: page of {size / 1e6:.2f} MB in {time.perf_counter() - began:.1f} s")
    assert len(page.found.items) == 510 and size < 3_000_000


@pytest.mark.slow
def test_every_pair_is_in_the_json_and_the_one_asked_for_meets_all_others():
    names = [f"t5:buckets={n}" for n in range(4, 24)]
    for tasks in (TASKS[:1], TASKS[:2]):
        found = findings(study(tasks, names, seeds=2), focus=[names[7]])
        page = Page(found)
        assert len(page.plain()["differences"]) == 20 * 19 // 2
        shown = page.difference_table()
        assert len(shown) == 19 and all(found.label(names[7]) in line["pair"] for line in shown)
        assert "The map shows all 190 pairs" in page.difference_table_caption()
        (drawing,) = [drawing for drawing in page.overview() if drawing.name == "pairs"]
        assert drawing.data.height == 190 and "<svg" in drawing.svg()
    few = Page(findings(study(TASKS[:1], names[:7], seeds=2)))
    assert len(few.difference_table()) == 21 and not [one for one in few.overview() if one.name == "pairs"]


def test_what_three_seeds_know_is_said():
    page = Page(findings(study(TASKS[:1], ["nope", "rope"]), more="add --seeds {seeds}"))
    (pair,) = page.difference_table()
    assert re.fullmatch(r"all 3 seeds agree; the smallest difference is \.\d\d", pair["verdict"])
    assert "All 3 seeds put it ahead of RoPE, by at least 0." in page.verdict
    assert "95 % needs 6 seeds; add --seeds 6" in page.verdict and "not settled" not in page.verdict
    timed = {item.key: {"done": {"seconds": 60.0}, "run": {}} for item in page.found.items}
    told = Page(findings(study(TASKS[:1], ["nope", "rope"]), records=timed)).difference_table_caption()
    assert re.search(r"95 % needs 6 seeds; .* \(about \d+ (s|min) more on \d+ cores\)", told)


def test_curves_of_eight_are_a_map_and_legends_lie_outside(tmp_path):
    from lengthwise.reporting import figures

    few = figures.study_accuracy_curves(findings(study(TASKS[:1], [f"t5:buckets={n}" for n in range(4, 11)])), TASKS[0])
    many = figures.study_accuracy_curves(
        findings(study(TASKS[:1], [f"t5:buckets={n}" for n in range(4, 12)])), TASKS[0]
    )
    assert "colorbar" not in few.svg() and 'id="legend_1"' in few.svg()
    assert "trained up to 8, the white line" in many.svg() and 'id="legend_1"' not in many.svg()
    figure = few.figure()
    figure.canvas.draw()
    (axes,), (legend,) = figure.axes, figure.legends
    top = axes.transData.transform((0, 1.0))[1]
    assert legend.get_window_extent().y0 > top, "the legend lies above every line"
    drawn = [line for line in axes.lines if len(line.get_xdata()) > 4 and line.get_linestyle() != ":"]  # not chance
    assert len(drawn) == 7 * 4 and not any(line.get_clip_on() for line in drawn), "lines at 1.0 are whole"


def test_troubles_of_training_are_named_apart_from_what_does_not_extrapolate():
    made = study(TASKS[:1], ["nope", "t5", "rope"], seeds=1)
    from lengthwise.study.plan import Planned

    flat, falling, spiked = (
        [[step, 2.3] for step in range(50, 1050, 50)],
        [[step, 2.3 * 0.9 ** (step / 50)] for step in range(50, 1050, 50)],
        [[step, 2.3 * 0.9 ** (step / 50) + (2.0 if step == 600 else 0)] for step in range(50, 1050, 50)],
    )
    items = Planned(made).items({})[0]
    logs = dict(zip([item.key for item in items], (flat, falling, spiked), strict=True))
    records = {key: {"done": {}, "run": {}, "log": log} for key, log in logs.items()}
    found = findings(made, items, records=records)
    import polars as pl

    lost = pl.col("run") == items[0].key
    broken = found.rows.with_columns(pl.when(lost).then(0).otherwise(pl.col("correct")).alias("correct"))
    object.__setattr__(found, "rows", broken)
    page = Page(found)
    told = {line["encoding"]: line["what happened"] for line in page.training_problem_table()}
    assert told["NoPE"].startswith("the loss never left its plateau")
    assert len(told) == 1, "the others learned, and fail beyond: that is no trouble of training"
    assert page.spike_text() == "In 1 of 2 runs that learned, the loss spiked at least once."
    assert page.spike_text() in page.html() and page.spike_text() in [part.content for part in page.all_parts()]
    assert "never left the plateau" in page.verdict and "Runs whose training went wrong" in page.html()

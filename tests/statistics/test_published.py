"""The original study's own rows: its recipe gives its numbers, and tasks as the sample give what they can."""

from pathlib import Path

import polars as pl
import pytest

from lengthwise.statistics.aggregates import encoding_differences
from lengthwise.statistics.cells import median_interval_rank
from lengthwise.statistics.intervals import mean_over_families
from lengthwise.statistics.ranks import FIVE, mean_reciprocal_ranks, paper_mean_reciprocal_ranks

FOLDER = Path(__file__).parents[3] / "shared" / "published"
NAMES = {"none": "nope", "t5_relative_bias": "t5", "alibi": "alibi", "rotary": "rope"}
NAMES |= {"abs_sinusoid": "sinusoidal"}
CATEGORIES = {"primitive": ["s2s_copy", "s2s_reverse"], "classic": ["scan", "pcfg"]}
QUERIES = {"primitive": 24, "classic": 6, "maths": 21}

pytestmark = pytest.mark.skipif(
    not (FOLDER / "accuracy.csv").exists(), reason="the original study's tables are not beside the checkout"
)


@pytest.fixture(scope="module")
def per_seed() -> pl.DataFrame:
    """Accuracy over all unseen lengths together, a line for each (task, encoding, seed)."""
    rows = pl.read_csv(FOLDER / "accuracy.csv", infer_schema_length=None)
    kept = rows.filter(
        (pl.col("category") == "overall")
        & pl.col("source").is_in(["results/classic.jsonl", "results/sanity_check.jsonl"])
        & (pl.col("eval_set") == "test_unseen")
        & (pl.col("scratchpad") == "no_scratchpad")
        & pl.col("pe").is_in(list(NAMES))
        & ~pl.col("split").is_in(["len_tr25_ts48", "productivity"])  # their texts were not parsed: all 0
    )
    return kept.select(
        pl.col("task").alias("group"),
        (pl.col("task") + ":split=" + pl.col("split")).alias("task"),
        pl.col("pe").replace_strict(NAMES).alias("encoding"),
        pl.col("seed").cast(pl.Int64),
        pl.col("accuracy").cast(pl.Float64).alias("micro"),
    )


@pytest.fixture(scope="module")
def per_task() -> pl.DataFrame:
    """Mean accuracy over three seeds: 17 variants."""
    return pl.read_csv(FOLDER / "mean_accuracy_per_task.csv")


def category(per_seed: pl.DataFrame, name: str) -> pl.DataFrame:
    return per_seed.filter(pl.col("group").is_in(CATEGORIES[name]))


def test_the_papers_recipe_gives_the_papers_numbers(per_seed, figure):
    wanted = {
        "primitive": {"NoPE": 0.7986, "T5": 0.5972, "ALiBi": 0.4340, "Rotary": 0.2431, "APE": 0.2104},
        "classic": {"NoPE": 0.5000, "T5": 0.7083, "ALiBi": 0.4583, "Rotary": 0.4167, "APE": 0.2000},
    }
    for name, values in wanted.items():
        found = paper_mean_reciprocal_ranks(category(per_seed, name))
        assert found.queries == QUERIES[name] and not found.dropped
        assert {who: round(value, 4) for who, value in found.values.items()} == values
        figure(f"published, {name}: " + ", ".join(f"{who} {value:.4f}" for who, value in found.values.items()))


def test_with_the_published_maths_it_is_the_papers_figure_1(per_seed):
    maths = pl.read_csv(FOLDER / "mrr.csv").select(pl.col("pe").replace_strict(NAMES), "math_21_queries_implied")
    known = dict(maths.iter_rows())
    own = {name: paper_mean_reciprocal_ranks(category(per_seed, name)).values for name in CATEGORIES}
    overall = {who: (24 * own["primitive"][who] + 21 * known[FIVE[who]] + 6 * own["classic"][who]) / 51 for who in FIVE}
    wanted = {"NoPE": 0.6869, "T5": 0.5490, "ALiBi": 0.5023, "Rotary": 0.3297, "APE": 0.2154}
    assert {who: round(value, 4) for who, value in overall.items()} == wanted


def test_the_listing_does_not_change_the_papers_numbers(per_seed):
    for seed in range(3):
        mixed = per_seed.sample(fraction=1, shuffle=True, seed=seed)
        assert paper_mean_reciprocal_ranks(category(mixed, "primitive")) == paper_mean_reciprocal_ranks(
            category(per_seed, "primitive")
        )


def test_our_recipe_shares_the_ties_that_row_order_gave_to_rotary(per_seed, figure):
    table = category(per_seed, "primitive").with_columns(pl.col("micro").alias("unseen"))
    ours, theirs = mean_reciprocal_ranks(table).values, paper_mean_reciprocal_ranks(table).values
    figure("primitive by our recipe: " + ", ".join(f"{who} {value:.4f}" for who, value in ours.items()))
    assert sum(ours.values()) == pytest.approx(sum(theirs.values()))
    assert ours["Rotary"] < theirs["Rotary"] and ours["APE"] > theirs["APE"]


def test_over_tasks_nope_and_t5_are_not_settled_and_nope_and_ape_are(per_task, figure):
    def apart(other: str) -> dict[str, float]:
        return {
            f"{line['task']}:split={line['split']}": line["test_unseen__none"] - line[f"test_unseen__{other}"]
            for line in per_task.iter_rows(named=True)
        }

    t5, ape = (mean_over_families(apart(name), family_of=str) for name in ("t5_relative_bias", "abs_sinusoid"))
    assert t5.n == 17 and round(t5.value, 3) == 0.031 and round(t5.half, 3) == 0.065 and not t5.excludes_zero
    assert ape.excludes_zero and ape.low > 0.2
    families = {name: mean_over_families(apart(name)) for name in ("t5_relative_bias", "abs_sinusoid")}
    assert all(one.n == 10 for one in families.values())
    assert not families["t5_relative_bias"].excludes_zero and families["abs_sinusoid"].excludes_zero
    for name, one in (("T5", t5), ("APE", ape)):
        figure(f"NoPE − {name} over 17 published variants: {one.value:.3f} ± {one.half:.3f}")
    for name, one in families.items():
        figure(f"NoPE − {name} over ten families: {one.value:.3f} ± {one.half:.3f}")


def test_three_seeds_settle_nothing_on_a_single_published_task(per_seed):
    from lengthwise.statistics.aggregates import task_difference

    assert median_interval_rank(3)[1] == 0.75
    for task in sorted(set(per_seed["task"])):
        assert not task_difference(per_seed, task, "nope", "sinusoidal", "micro").settled


def test_over_the_published_seeds_the_primitive_tasks_are_settled(per_seed):
    found = {(one.one, one.other): one for one in encoding_differences(category(per_seed, "primitive"), "micro")}
    assert found["nope", "sinusoidal"].settled and found["nope", "sinusoidal"].seeds.n == 24

"""What small models without positions learn about the order of their input."""

from __future__ import annotations

from typing import Any

from lengthwise.progress import Say

SORT, COPY = "sort:variant=single", "copy:variant=random"


def train_order_models(
    store: str,
    *,
    seed: int = 0,
    alphabet: int = 20,
    longest: int = 8,
    steps: int = 1500,
    model: str = "laptop",
    on_progress: Say | None = None,
) -> list[dict[str, Any]]:
    """Train sort and copy under a prefix mask and, beside them, copy under a causal one, all without positions.

    `guess` is the best that knowing the symbols without their order gives; `shuffled` what another order of the prompt
    adds to the loss of a token of the answer, in nats.
    """
    import torch

    from lengthwise.evaluation.cases import evaluation_cases
    from lengthwise.run import train
    from lengthwise.statistics.learned import scored_rows_filter
    from lengthwise.theory.order import best_guess_accuracy_from_multiset, permuted_prompt_effect

    rows = []
    for task, mask in ((SORT, "prefix"), (COPY, "prefix"), (COPY, "causal")):
        if on_progress is not None:
            on_progress(f"training {task} with a {mask} mask")
        run = train(
            f"{task}:alphabet={alphabet}:longest={longest}",
            "nope",
            model=f"{model}:mask={mask}",
            training=f"laptop:steps={steps}",
            seed=seed,
            store=store,
            quiet=True,
        )
        found = run.rows().filter(scored_rows_filter())
        decoder = run.evaluation_inputs()[0].eval()
        for row in found.filter(found["subgroup"].is_null()).iter_rows(named=True):
            copying, loss = run.task.name == "copy", None
            if row["seen"] and row["length"] > 1:
                asked = evaluation_cases(run.task, row["split"], row["length"], examples=32)
                ids_BT = torch.tensor([case.ids for case in asked])
                loss = permuted_prompt_effect(
                    decoder, ids_BT, asked[0].prompt, seed=seed, keep_first=int(run.task.starts)
                ).loss
            rows.append(
                {
                    "task": run.task.name,
                    "mask": mask,
                    "length": row["length"],
                    "seen": row["seen"],
                    "examples": row["examples"],
                    "correct": row["correct"],
                    "guess": best_guess_accuracy_from_multiset(alphabet, row["length"]) if copying else None,
                    "shuffled": loss,
                }
            )
    return sorted(rows, key=lambda row: (row["task"], row["mask"], row["length"]))

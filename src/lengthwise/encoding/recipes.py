"""Recipes: the encodings by layer of published models, at any size. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from lengthwise.spec import SpecError, did_you_mean


@dataclass(frozen=True)
class Recipe:
    """One period of a model's layers; `{window}` and `{twice}` are its window and twice as much, in tokens."""

    name: str
    period: tuple[str, ...]
    temperature: str
    window: int
    """The window of the published model."""
    source: str
    """The class of transformers whose default configuration is copied."""
    differs: str = ""
    """What of the model's attention is not copied."""

    def encoding(self, layers: int | None = None, window: int = 8) -> str:
        """The list of encodings for `layers` layers, one period unless given, with windows of `window` tokens."""
        if window < 1:
            raise SpecError(f"a window has at least one token, not {window}")
        layers = len(self.period) if layers is None else layers
        if layers < 1 or layers % len(self.period):
            raise SpecError(
                f"{self.name} repeats every {len(self.period)} layers, so the number of layers is a multiple of that, "
                f"not {layers}"
            )
        listed = [part.format(window=window, twice=2 * window) for part in self.period]
        counted = [(len(list(same)), one) for one, same in groupby(listed)]
        once = ",".join(one if many == 1 else f"{many}*{one}" for many, one in counted)
        times = layers // len(self.period)
        return once if times == 1 else f"{times}*[{once}]"

    def model(self, layers: int | None = None, window: int = 8, preset: str = "laptop") -> str:
        """The model spec: the number of layers, and the attention temperature where the model has one."""
        spec = f"{preset}:layers={len(self.period) if layers is None else layers}"
        temperature = self.temperature.format(window=window, twice=2 * window)
        return f"{spec}:temperature=[{temperature}]" if temperature else spec


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "llama4",
            (*["chunked:chunk={window}:interleaved=true:theta=500000.0"] * 3, "nope"),
            "llama4:floor={window}",
            8192,
            "Llama4TextConfig",
            "norms of rotated queries and keys",
        ),
        Recipe("smollm3", (*["rope:theta=2000000.0"] * 3, "nope"), "", 0, "SmolLM3Config"),
        Recipe("cohere2", (*["local:interleaved=true:window={window}"] * 3, "nope"), "", 4096, "Cohere2Config"),
        Recipe(
            "gemma3",
            (*["local:window={window}"] * 5, "rope:theta=1000000.0"),
            "",
            4096,
            "Gemma3TextConfig",
            "norms of queries and keys",
        ),
        Recipe(
            "gemma4",
            (*["local:window={window}"] * 5, "rope:p=0.25:theta=1000000.0"),
            "",
            512,
            "Gemma4TextConfig",
            "norms of queries and keys; wider heads in global layers",
        ),
        Recipe(
            "inkling",
            (*["inkling:extent={window}:window={window}"] * 5, "inkling:extent={twice}"),
            "inkling:floor={twice}",
            512,
            "InklingTextConfig",
            "norms and scale of queries and keys; convolutions; its temperature is off by default",
        ),
    )
}


def recipe(name: str) -> Recipe:
    """The recipe of a published model: `recipe("smollm3").encoding(layers=8)` is `2*[3*rope:theta=2000000.0,nope]`."""
    if name not in RECIPES:
        raise SpecError(f"there is no recipe {name!r}.{did_you_mean(name, RECIPES)}")
    return RECIPES[name]

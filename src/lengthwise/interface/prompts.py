"""One prompt for a trained model: its answer, its attention weights; and the model as a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lengthwise.display import Display, Part
from lengthwise.folder import Folder
from lengthwise.run.lease import STORE

if TYPE_CHECKING:
    from lengthwise.reporting.drawing import Drawing
    from lengthwise.run import Run
    from lengthwise.run.ask import Answer, AttentionMaps


def ask(
    run: Run | str, prompt: str, *, checkpoint: str = "last", store: str = STORE, allow_code: bool = False
) -> Answer:
    """Ask a trained model, and return its answer with the correct one.

    >>> ask("sort-nope-s0", "3 1 2")
    """
    from lengthwise.run import Run
    from lengthwise.run.ask import ask

    return ask(Run.of(run, store, allow_code), prompt, checkpoint)


@dataclass(frozen=True, repr=False)
class PromptAttention(Display):
    """The attention weights of one prompt: heat maps in a notebook; `write` makes them a file."""

    found: AttentionMaps

    @property
    def drawing(self) -> Drawing:
        """A heat map for each layer and head, with the tokens as labels."""
        from lengthwise.reporting.attention import attention_heat_maps

        return attention_heat_maps(self.found.tokens, self.found.prompt, self.found.weights_LHQK, self.found.title)

    def write(self, to: str | Path) -> Path:
        """Write the heat maps as an SVG file."""
        path = Path(to)
        Folder(path.parent).write(path.name, self.drawing.svg())
        return path

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The tokens, and how many heads were drawn."""
        layers, heads, tokens, _ = self.found.weights_LHQK.shape
        yield Part(" ".join(self.found.tokens))
        yield Part(f"{self.found.title}: {layers} layers × {heads} heads, {tokens} tokens")

    def plain(self) -> dict[str, object]:
        """Tokens and weights."""
        return {"tokens": self.found.tokens, "weights": self.found.weights_LHQK.tolist()}

    def _repr_html_(self) -> str:
        return self.drawing.svg()


def attention(
    run: Run | str, prompt: str, *, checkpoint: str = "last", store: str = STORE, allow_code: bool = False
) -> PromptAttention:
    """Return the attention weights over a prompt and the model's own answer, as heat maps.

    >>> attention("sort-nope-s0", "3 1 2").write("attention.svg")
    """
    from lengthwise.interface.attention import open_finished_run
    from lengthwise.run.ask import attention as weights

    return PromptAttention(weights(open_finished_run(run, store, allow_code), prompt, checkpoint))


@dataclass(frozen=True, repr=False)
class ExportedModel(Display):
    """A model that was written as a Hugging Face folder."""

    folder: Path
    lines: str
    """The Python lines that load it and try a prompt."""
    source: str
    """The run and the checkpoint."""

    def display_parts(self, width: int = 80) -> list[Part]:
        """Where it is, and the lines that load it."""
        return [Part(f"{self.source}: {self.folder}", wrap=False), Part(self.lines, wrap=False)]

    def plain(self) -> dict[str, object]:
        """All fields."""
        return {"folder": str(self.folder), "lines": self.lines, "source": self.source}


def export_model(
    run: Run | str, folder: str | Path, *, checkpoint: str = "last", store: str = STORE, allow_code: bool = False
) -> ExportedModel:
    """Write a run's model as a Hugging Face folder: weights, config with the end token, tokenizer.

    >>> export_model("copy-rope-s0", "exported")
    """
    from lengthwise.hf.export import export_model as write
    from lengthwise.hf.export import loading_code
    from lengthwise.run import Run

    opened = Run.of(run, store, allow_code)
    prompt = write(opened.decoder(checkpoint).eval(), opened.task, opened.plan.positions, folder)
    return ExportedModel(Path(folder), loading_code(Path(folder), prompt), f"{opened.id}, {checkpoint}")

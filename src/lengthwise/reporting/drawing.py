"""Reproducible figures: saved with their data, byte-equal for equal data, legible in dark mode."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from lengthwise.folder import Folder

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

PAGE = 7.4
"""Width in inches of a figure on the HTML page."""
COLUMN = 3.3
"""Width in inches of a column of a paper; `ACROSS` is the width of two columns and the gap."""
ACROSS = 6.9

ON_DARK, ON_LIGHT = "#fffffe", "#010101"
"""Text colours on coloured cells, which dark mode does not change."""

_STYLE = {
    "svg.fonttype": "none",  # keep text as text, not as paths
    "svg.hashsalt": "lengthwise",
    "image.interpolation": "none",  # store a heat map with one pixel per cell
    "pdf.fonttype": 42,
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.labelcolor": "#333333",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "text.color": "#222222",
    "legend.frameon": False,
}
# In dark mode, dark text and lines become light; the colours of encodings are legible on both backgrounds.
_DARK = (
    "<style>@media (prefers-color-scheme: dark){"
    'text:not([style*="fill: #fffffe"]):not([style*="fill: #010101"]){fill:#d8d8d8 !important}'
    'path[style*="stroke: #555555"],use[style*="stroke: #555555"]{stroke:#9a9a9a !important}'
    'path[style*="fill: #f2f2f2"]{fill:#2a2e35 !important}'
    'path[style*="stroke: #222222"]{stroke:#e8e8e8 !important}'
    "}</style>"
)


@dataclass(frozen=True)
class Drawing:
    """A figure: `Drawing("reach", "Reach of each encoding.", data, paint).write("figures")`."""

    name: str
    alt: str
    """The alternative text for readers who cannot see the figure."""
    data: pl.DataFrame
    paint: Callable[[float], Figure]
    """Draws the figure with a width in inches."""
    panels: bool = False
    """Whether it has several panels or many rows, and so needs both columns of a paper."""

    def figure(self, width: float = PAGE) -> Figure:
        """Return the matplotlib figure, for a notebook or further changes."""
        import matplotlib.pyplot as plt

        with plt.rc_context(_STYLE):
            made = self.paint(width)
            plt.close(made)  # so that a notebook does not show it twice
        return made

    def svg(self) -> str:
        """Return the figure as SVG; it is drawn once."""
        return self._svg

    @cached_property
    def _svg(self) -> str:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        text = StringIO()
        with plt.rc_context(_STYLE):
            _laid_out(self.figure()).savefig(text, format="svg", metadata={"Date": None}, transparent=True)
        return _small(text.getvalue())

    def _repr_svg_(self) -> str:
        """Return the SVG that a notebook shows."""
        return self.svg()

    def uri(self) -> str:
        """Return the figure as a data URI, for the `src` of an image in a self-contained page."""
        return "data:image/svg+xml," + quote(self.svg(), safe=" ='/:;,.()[]{}!@$*+-_~|")

    def write(self, to: str | Path, file_formats: Sequence[str] = ("svg",)) -> list[Path]:
        """Write the figure as `svg`, `png` or `pdf`, and its data as CSV; a PDF has the width of a paper's column."""
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        folder, paths = Folder(to), []
        for kind in file_formats:
            if kind == "svg":
                content: bytes | str = self.svg()
            else:
                bits = BytesIO()
                paper = kind == "pdf"
                with plt.rc_context({**_STYLE, **({"font.size": 8 if self.panels else 7} if paper else {})}):
                    figure = _laid_out(self.paint(PAGE if not paper else ACROSS if self.panels else COLUMN))
                    figure.savefig(bits, format=kind, dpi=160, metadata={"CreationDate": None} if paper else {})
                    plt.close(figure)
                content = bits.getvalue()
            folder.write(f"{self.name}.{kind}", content)
            paths.append(Path(to) / f"{self.name}.{kind}")
        folder.write(f"{self.name}.csv", self.data.write_csv())
        return [*paths, Path(to) / f"{self.name}.csv"]


def _laid_out(figure: Figure) -> Figure:
    """Compute the layout once and remove the layout engine, with which `savefig` draws everything twice."""
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if not axis.get_label_text():
            axis.set_label_coords(0, 0)  # else matplotlib measures every tick to place an empty label
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)
    return figure


def _small(svg: str) -> str:
    """Shrink an SVG (fewer decimals, no comments, no metadata) and add the colours of dark mode."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    # Round coordinates inside tags only: between tags there is text such as "0.03".
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d+\.\d)\d+(?=[ \"\n,)])", r"\1", tag.group()), svg)
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    end = svg.index(">") + 1
    return svg[:end] + _DARK + svg[end:]

"""A figure that can be drawn again: its data beside it, the same bytes for the same data, legible in the dark."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from lengthwise.folder import Folder

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

PAGE = 7.4
"""Inches of a figure on the page."""
COLUMN = 3.3
"""Inches of a column of a paper, and twice that and a gap for a figure across both."""
ACROSS = 6.9

ON_DARK, ON_LIGHT = "#fffffe", "#010101"
"""Words on a colour of their own, which stay as they are in the dark."""

_STYLE = {
    "svg.fonttype": "none",  # words stay words
    "svg.hashsalt": "lengthwise",
    "image.interpolation": "none",  # a map is stored with a pixel for each cell, not enlarged
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
# What is dark on white is light in the dark; the colours of encodings are legible on both.
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
    """What it shows, for who cannot see it."""
    data: pl.DataFrame
    paint: Callable[[float], Figure]
    """Draws it, so many inches wide."""
    panels: bool = False
    """Whether it has several panels or many rows, and so needs both columns of a paper."""

    def figure(self, width: float = PAGE) -> Figure:
        """The figure itself, for a notebook or to be changed by hand."""
        import matplotlib.pyplot as plt

        with plt.rc_context(_STYLE):
            made = self.paint(width)
            plt.close(made)  # a notebook shows what is returned, not a second copy
        return made

    def svg(self) -> str:
        """The figure as SVG."""
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        text = StringIO()
        with plt.rc_context(_STYLE):
            _laid_out(self.figure()).savefig(text, format="svg", metadata={"Date": None}, transparent=True)
        return _small(text.getvalue())

    def _repr_svg_(self) -> str:
        """What a notebook shows."""
        return self.svg()

    def uri(self) -> str:
        """The figure as the source of an image of a page that needs no other file."""
        return "data:image/svg+xml," + quote(self.svg(), safe=" ='/:;,.()[]{}!@$*+-_~|")

    def write(self, to: str | Path, kinds: Sequence[str] = ("svg",)) -> list[Path]:
        """Write the figure as `svg`, `png` or `pdf` and, beside it, its data; a PDF is as wide as a paper's column."""
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        folder, paths = Folder(to), []
        for kind in kinds:
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
    """The figure with its layout made once; with a layout engine, `savefig` draws everything twice."""
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if not axis.get_label_text():
            axis.set_label_coords(0, 0)  # or every tick is measured to find a place for no words
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)
    return figure


def _small(svg: str) -> str:
    """Without what nobody sees: the fourth decimal of a place, comments, metadata; with colours for the dark."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    # Places inside tags are rounded; what is between tags are words, and "0.03" is one.
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d+\.\d)\d+(?=[ \"\n,)])", r"\1", tag.group()), svg)
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    end = svg.index(">") + 1
    return svg[:end] + _DARK + svg[end:]

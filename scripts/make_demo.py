"""Record a command in a real terminal and draw it: docs/figures/demo.svg; and the social card, docs/figures/card.png.

    python scripts/make_demo.py demo     about two minutes on two quiet cores
    python scripts/make_demo.py card     a second

The terminal is a pseudo-terminal whose output goes through pyte, a terminal emulator. Each screen becomes a frame of an
SVG with CSS animation, which plays in a README without a player. Time runs faster than it did; the clock in the title
bar shows the real one.
"""

from __future__ import annotations

import base64
import os
import pty
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import pyte

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"
COMMAND = "lengthwise compare sort:alphabet=16 --encodings nope,rope --training laptop:steps=1000:lr=0.003"
COLUMNS, LINES = 102, 19
CHARACTER, LINE, MARGIN, BAR = 8.0, 18.0, 16.0, 30.0
WIDTH, HEIGHT = COLUMNS * CHARACTER + 2 * MARGIN, LINES * LINE + 2 * MARGIN + BAR
FRAMES_OF_RUN = 48
"""Frames for the time that the command takes."""
TYPED, SHOWN, READ, PICTURE = 0.04, 0.2, 5.0, 6.0
"""Seconds for a typed character, a frame of the run, the last screen, and the picture."""
COLOURS = {
    "default": "#d8dee9",
    "red": "#e06c75",
    "green": "#98c379",
    "brown": "#e5c07b",
    "blue": "#61afef",
    "magenta": "#c678dd",
    "cyan": "#56b6c2",
    "black": "#6b7484",
}


@dataclass(frozen=True)
class Frame:
    """A screen, how long it is shown, and the seconds since the command was started."""

    lines: tuple[str, ...]
    """Each line as SVG text spans."""
    seconds: float
    clock: float | None = None


def record(command: str, folder: Path) -> list[tuple[float, tuple[str, ...]]]:
    """Run a command in a pseudo-terminal; return the screens with the seconds at which each was reached."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    stream.feed(f"$ {command}\r\n".encode())
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    here = {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm-256color", "PATH": path}
    ours, theirs = pty.openpty()
    began, seen = time.monotonic(), [(0.0, _spans(screen))]
    process = subprocess.Popen(
        command.split(), cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **here}
    )
    os.close(theirs)
    while True:
        ready, _, _ = select.select([ours], [], [], 0.2)
        if not ready and process.poll() is not None:
            break
        if ready:
            try:
                stream.feed(os.read(ours, 65536))
            except OSError:  # the other end is closed
                break
            seen.append((time.monotonic() - began, _spans(screen)))
    if process.wait() != 0:
        raise SystemExit(f"{command} failed:\n" + "\n".join(screen.display))
    return seen


def _spans(screen: pyte.Screen) -> tuple[str, ...]:
    """The lines of a screen as SVG spans, one for each run of characters of one style."""
    return tuple("".join(_styled(screen.buffer[number])) for number in range(LINES))


def _styled(row: pyte.screens.StaticDefaultDict) -> Iterator[str]:
    cells = [row[column] for column in range(COLUMNS)]
    while cells and cells[-1].data in {" ", ""}:
        cells.pop()
    start = 0
    for end in range(1, len(cells) + 1):
        if end == len(cells) or _style(cells[end]) != _style(cells[start]):
            text = escape("".join(cell.data for cell in cells[start:end]))
            yield f"<tspan {_style(cells[start])}>{text}</tspan>"
            start = end


def _style(cell: pyte.screens.Char) -> str:
    known = COLOURS.get(cell.fg) or (f"#{cell.fg}" if len(cell.fg) == 6 else COLOURS["default"])
    return f'fill="{known}"' + (' font-weight="bold"' if cell.bold else "")


def frames(command: str, seen: Sequence[tuple[float, tuple[str, ...]]]) -> list[Frame]:
    """The typing of the command, the run in `FRAMES_OF_RUN` frames, and its last screen."""
    plain, default = seen[0][1], f'<tspan fill="{COLOURS["default"]}">'
    typing = [
        Frame((f"{default}$ {escape(command[:count])}▌</tspan>", *plain[1:]), TYPED) for count in range(len(command))
    ]
    whole = seen[-1][0]
    run, at = [], 0
    for number in range(FRAMES_OF_RUN):
        clock = whole * number / FRAMES_OF_RUN
        while at + 1 < len(seen) and seen[at + 1][0] <= clock:
            at += 1
        run.append(Frame(seen[at][1], SHOWN, clock))
    return [*typing, *run, Frame(seen[-1][1], READ, whole)]


def svg(command: str, shown: Sequence[Frame], picture: str) -> str:
    """The animation; `picture` is an SVG that is shown at its end."""
    total = sum(frame.seconds for frame in shown) + PICTURE
    known: dict[str, str] = {}
    for frame in shown:
        for line in frame.lines:
            known.setdefault(line, f"t{len(known)}")
    last = len(shown)
    style, body, begin = [], [], 0.0
    for number, frame in enumerate(shown):
        style.append(_keyframes(number, begin / total, (begin + frame.seconds) / total))
        begin += frame.seconds
        places = [(MARGIN, BAR + MARGIN + (place + 0.8) * LINE, line) for place, line in enumerate(frame.lines) if line]
        used = "".join(f'<use href="#{known[line]}" x="{x:g}" y="{y:g}"/>' for x, y, line in places)
        body.append(f'<g class="f" id="f{number}">{used}{_clock(frame.clock)}</g>')
    style.append(_keyframes(last, begin / total, 1.0))
    data, high = base64.b64encode(picture.encode()).decode(), HEIGHT - BAR - 2 * MARGIN
    body.append(
        f'<g class="f" id="f{last}"><rect y="{BAR:g}" width="{WIDTH:g}" height="{HEIGHT - BAR:g}" fill="#fff"/>'
        f'<image x="{MARGIN:g}" y="{BAR + MARGIN:g}" width="{WIDTH - 2 * MARGIN:g}" height="{high:g}" '
        f'href="data:image/svg+xml;base64,{data}"/></g>'
    )
    defs = "".join(f'<text id="{name}" xml:space="preserve">{line}</text>' for line, name in known.items() if line)
    dots = "".join(f'<circle cx="{20 + 20 * i}" cy="15" r="6" fill="{c}"/>' for i, c in enumerate(_DOTS))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" width="{WIDTH:g}" '
        f'height="{HEIGHT:g}" role="img">'
        f"<title>A terminal: {escape(command)}, from an empty folder to the picture</title>"
        f"<style>text{{font:13.2px/1.2 'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#d8dee9}}"
        f".f{{visibility:hidden;animation:{total:.2f}s step-end infinite}}{''.join(style)}"
        f"@media (prefers-reduced-motion:reduce){{.f{{animation:none!important}}#f{last}{{visibility:visible}}}}"
        f'</style><defs>{defs}</defs><rect width="{WIDTH:g}" height="{HEIGHT:g}" rx="8" fill="#1e222a"/>{dots}'
        f"{''.join(body)}</svg>\n"
    )


_DOTS = ("#ff5f57", "#febc2e", "#28c840")


def _keyframes(number: int, begin: float, end: float) -> str:
    """A frame is visible from `begin` to `end`, shares of the whole."""
    steps = {0.0: "hidden", 100 * begin: "visible", 100 * end: "hidden"}
    if end >= 1:
        steps.pop(100 * end)
    told = "".join(f"{share:.3f}%{{visibility:{state}}}" for share, state in steps.items())
    return f"@keyframes k{number}{{{told}}}#f{number}{{animation-name:k{number}}}"


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return ""
    told = f"{int(seconds) // 60}:{int(seconds) % 60:02d} min on two cores"
    return f'<text x="{WIDTH - MARGIN:g}" y="20" text-anchor="end">{told}</text>'


def make_demo() -> None:
    """Run the command in an empty folder and write the animation."""
    with tempfile.TemporaryDirectory() as empty:
        seen = record(COMMAND, Path(empty))
        picture = (Path(empty) / "lengthwise-output" / "compare-sort.svg").read_text("utf-8")
    (FIGURES / "demo.svg").write_text(svg(COMMAND, frames(COMMAND, seen), picture), "utf-8")
    print(f"{FIGURES.name}/demo.svg: {seen[-1][0]:.0f} s recorded in {len(seen)} screens")


CARD = """<html><body style="margin:0;width:1280px;height:640px;background:#fff;font-family:'DejaVu Sans',sans-serif;
display:flex;align-items:center"><div style="width:560px;padding:0 20px 0 60px">
<h1 style="font-size:68px;margin:0 0 24px">lengthwise</h1>
<p style="font-size:30px;line-height:1.35;margin:0;color:#333">
How far beyond its training length does a Transformer still work, and what does its positional encoding have to do with
it?</p><p style="font-size:22px;color:#777">Trained on lists of up to 8 items, tested on longer ones: three seeds, two
cores, minutes.</p></div><img style="width:600px" src="data:image/svg+xml;base64,{figure}"></body></html>"""


def make_card() -> None:
    """Photograph the card, 1280 × 640, with the quickstart's figure."""
    from playwright.sync_api import sync_playwright

    figure = base64.b64encode((FIGURES / "quickstart.svg").read_bytes()).decode()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 640})
        page.set_content(CARD.format(figure=figure))
        page.screenshot(path=FIGURES / "card.png")
        browser.close()


if __name__ == "__main__":
    what = sys.argv[1:]
    if what not in (["demo"], ["card"]):
        raise SystemExit(__doc__)
    make_demo() if what == ["demo"] else make_card()

"""The site: it is built without a warning, no link is broken, it asks no other server, and its search works."""

import gzip
import importlib.util
import json
import re
import shutil
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import lengthwise as lw
from lengthwise.evaluation.rows import COLUMNS

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.docs, pytest.mark.timeout(1200)]  # the site runs the notebooks


def site_builder():
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "scripts" / "build_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    site_builder().build(folder)
    return folder


class Page(HTMLParser):
    """The addresses and anchors of a page, and its text outside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.loaded, self.anchors, self.words, self.inside = [], [], set(), [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.inside = tag if tag in {"script", "style", "code"} else None
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in {"script", "img", "source", "iframe"} and "src" in found:
            self.loaded.append(found["src"])
        if tag == "link" and found.get("rel") in {"stylesheet", "preload", "icon", "preconnect"}:
            self.loaded.append(found["href"])

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside is None:
            self.words.append(data)


def broken(site: Path) -> list[str]:
    """Links to pages, files or anchors that are not there, and files that another server is asked for."""
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    wrong = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for address in page.loaded + page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                wrong += [f"{path.name} loads {address}"] * (address in page.loaded and parts.scheme != "data")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                wrong.append(f"{path.relative_to(site)}: {address}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                wrong.append(f"{path.relative_to(site)}: {address} (no such anchor)")
        if "```" in "".join(page.words):
            wrong.append(f"{path.relative_to(site)}: a block of code is shown as text")
    return wrong


def test_no_link_is_broken_and_nothing_is_loaded_from_elsewhere(site, figure):
    assert not broken(site)
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    pages = len(list(site.rglob("*.html")))
    figure(f"the site: {pages} pages, {size / 1e6:.1f} MB")
    assert size < 30e6 and pages > 30


def test_a_broken_link_an_anchor_that_is_gone_and_a_foreign_script_are_found(site, tmp_path):
    there = tmp_path / "site"
    shutil.copytree(site, there)
    page = there / "start" / "concepts.html"
    plants = [
        "<p>```py x.py</p>",
        '<a href="gone.html">',
        '<a href="#gone">',
        '<script src="https://example.org/x.js">',
    ]
    page.write_text(page.read_text().replace("</body>", "".join(plants) + "</body>"))
    assert len(broken(there)) == len(plants)


def test_every_page_is_in_the_navigation():
    def pages(entry):
        if isinstance(entry, str):
            return {entry}
        return set().union(*map(pages, entry.values() if isinstance(entry, dict) else entry))

    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert written - {"paper/paper.md"} <= pages(settings["nav"])  # the paper is for a journal, not for the site


def test_the_columns_of_rows_are_those_of_the_code():
    table = (ROOT / "docs" / "reference" / "rows.md").read_text()
    assert dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", table, re.MULTILINE)) == COLUMNS


def test_the_site_in_a_browser(site, browser, figure):
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}/"
    try:
        for width in (400, 1280):
            page = browser.new_page(viewport={"width": width, "height": 900})
            asked, said, sizes = [], [], {}
            page.on("request", lambda one, asked=asked: asked.append(one.url))
            page.on("console", lambda one, said=said: said.append(one.text) if one.type == "error" else None)
            page.on("response", lambda one, sizes=sizes: sizes.update({one.url: len(gzip.compress(one.body()))}))
            page.goto(home, wait_until="networkidle")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"the first page is {wide} wide in a window of {width}"
            assert all(url.startswith((home, "data:", "blob:")) for url in asked) and not said
        whole = sum(size for url, size in sizes.items() if not url.endswith(".svg"))
        figure(f"the first page: {whole / 1e3:.0f} kB without figures, compressed as servers send it")
        assert whole < 300e3
        page.keyboard.press("Control+k")
        page.wait_for_timeout(500)
        page.keyboard.type("divergence", delay=30)
        page.get_by_text(re.compile(r"\d+ results")).wait_for(timeout=20_000)
        assert page.get_by_text("A run ended with exit code 3").first.is_visible()
    finally:
        server.shutdown()


def test_the_interactive_pages_compute_what_the_package_computes(site, browser):
    import torch

    page = browser.new_page(viewport={"width": 1280, "height": 900})
    said = []
    page.on("pageerror", lambda one: said.append(str(one)))
    page.goto((site / "results" / "explore.html").as_uri(), wait_until="load")  # it works without a server too
    page.select_option("[name=study]", "frequencies")
    page.select_option("[name=task]", "sort:longest=8:variant=single")
    rows = page.locator(".explore tbody tr").all_inner_texts()
    by_name = {line.split("\t")[0]: float(line.split("\t")[1]) for line in rows}
    report = lw.Study.read("frequencies").report(store="no-store", write=False)
    table = report.tables["sort:longest=8:variant=single"]
    reaches = dict(table.select("encoding", "reach at .9").iter_rows())
    shown = {label: by_name.get(site_builder().by_period(label) or label) for label in reaches}
    shown = {label: value for label, value in shown.items() if value is not None}  # those that are ticked
    assert len(shown) == len(by_name) > 1 and all(
        float(str(reaches[name]).split()[0]) == value for name, value in shown.items()
    )
    page.fill("[name=threshold]", "0.05")
    lower = [float(line.split("\t")[1]) for line in page.locator(".explore tbody tr").all_inner_texts()]
    assert sum(lower) > sum(shown.values())

    page.goto((site / "understand" / "theorem1.html").as_uri(), wait_until="load")
    for name, dtype in {"bf16": torch.bfloat16, "fp16": torch.float16}.items():
        page.select_option("[name=format]", name)
        stored = (1 / torch.arange(1, 2**14, dtype=torch.float64)).to(dtype)
        first = int((stored[1:] == stored[:-1]).nonzero()[0]) + 1
        assert f"position {first} is the first" in page.locator(".told").inner_text()
    page.select_option("[name=format]", "fp32")
    assert "all positions" in page.locator(".told").inner_text() and not said


def test_the_notebooks_were_run_and_are_committed_without_output(site):
    """The site runs them from a clean kernel, and is not built if a cell fails."""
    written = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
    assert len(written) == 4
    for path in written:
        cells = json.loads(path.read_text())["cells"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), path.name
        page = (site / "tutorials" / f"{path.stem}.html").read_text()
        assert "Traceback" not in page
    texts = {path.stem: (site / "tutorials" / f"{path.stem}.html").read_text() for path in written}
    assert "in force is theta 5e+05" in texts["is-this-port-right"] and "<img" in texts["the-paper"]
    assert "positions are read exactly" in texts["how-nope-knows"] and "T05" in texts["your-encoding"]


def test_a_notebook_with_a_failing_cell_is_not_put_into_the_site(tmp_path):
    import nbformat
    from nbclient.exceptions import CellExecutionError

    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    nbformat.write(made, tmp_path / "wrong.ipynb")
    with pytest.raises(CellExecutionError):
        site_builder().executed_notebook(tmp_path / "wrong.ipynb")


def test_the_list_for_assistants_has_pages_that_exist(site):
    text = (site / "llms.txt").read_text()
    assert all((site / address).is_file() for address in re.findall(r"\]\(([^)]+)\)", text))
    assert len((ROOT / "docs" / "for-assistants.md").read_text().splitlines()) <= 60

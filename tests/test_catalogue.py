"""The docs' catalogue of encodings is the one that the command writes."""

from pathlib import Path

from typer.testing import CliRunner

import lengthwise.cli
from lengthwise.encoding import ENCODINGS

DOCS = Path(__file__).parent.parent / "docs"


def test_the_catalogue_is_up_to_date():
    written = CliRunner().invoke(lengthwise.cli.app, ["list", "encodings", "--markdown"]).output
    assert written == (DOCS / "catalogue.md").read_text(), "lengthwise list encodings --markdown > docs/catalogue.md"
    assert all(f"## {name}\n" in written for name in ENCODINGS)

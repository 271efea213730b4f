"""The catalogue of encodings is written by a command, and complete."""

from typer.testing import CliRunner

import lengthwise.cli
from lengthwise.encoding import ENCODINGS


def test_the_catalogue_has_every_encoding_with_its_words():
    written = CliRunner().invoke(lengthwise.cli.app, ["list", "encodings", "--markdown"]).output
    assert all(f"| [`{name}`](#{name}) |" in written and f"\n## {name}\n\n" in written for name in ENCODINGS)

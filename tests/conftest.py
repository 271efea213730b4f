"""What holds for all tests: one thread, and figures that are printed whoever ran the test."""

import pytest
import torch

# The models are tiny: two threads would only wait for each other.
torch.set_num_threads(1)


@pytest.fixture
def figure(request):
    """Print a measured figure at the end of the run; a worker of xdist has no terminal of its own."""

    def say(text: str) -> None:
        request.node.user_properties.append(("figure", text))

    return say


def pytest_terminal_summary(terminalreporter):
    said = [
        text
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, text in report.user_properties
        if name == "figure"
    ]
    if said:
        terminalreporter.section("measured")
        for text in said:
            terminalreporter.write_line(text)

"""Report 10,000 runs, and print seconds of a core, bytes of memory, bytes of the page."""

import resource
import sys
import time
from pathlib import Path

from lengthwise.reporting.page import Page
from tests.reporting.made import findings, study

ENCODINGS = [f"t5:buckets={n}" for n in range(4, 24)] + [f"rope:theta={n}000.0" for n in range(1, 21)]
TASKS = [
    f"copy:longest={n}:variant={variant}"
    for n in range(13, 23)
    for variant in ("same", "same2", "replace", "random", "random2")
]

if __name__ == "__main__":
    found = findings(study(TASKS, ENCODINGS, seeds=5))
    assert len(found.items) == 10_000
    began = time.process_time()
    page = Page(found)
    page.write(sys.argv[1], with_figures=False)
    took = time.process_time() - began
    size = Path(sys.argv[1], "index.html").stat().st_size
    print(took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, size)

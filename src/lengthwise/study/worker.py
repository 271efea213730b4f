"""A worker process: reads jobs from standard input, one line each, and answers each with a line."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from lengthwise.run.lease import Watch
from lengthwise.study.work import Job, work


def main() -> None:
    """Do jobs until there are no more, or this process is asked to stop."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what other code prints is no answer
    watch = Watch()
    while line := sys.stdin.readline():
        outcome = work(Job.read(line), watch)
        answers.write(json.dumps(asdict(outcome)) + "\n")
        answers.flush()
        if outcome.state == "stopped":
            return


if __name__ == "__main__":
    main()

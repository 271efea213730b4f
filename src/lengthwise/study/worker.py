"""A worker process: reads jobs from standard input, one per line, and writes one line per outcome."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict

from lengthwise.run.lease import StaleLeaseDetector
from lengthwise.study.work import Job, do_job


def main() -> None:
    """Do jobs until standard input ends or the process is asked to stop."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # print() of other code goes to stderr, not among the outcomes
    threading.Thread(target=_stop_without_parent, args=(os.getppid(),), daemon=True).start()
    watch = StaleLeaseDetector()
    while line := sys.stdin.readline():
        outcome = do_job(Job.read(line), watch)
        answers.write(json.dumps(asdict(outcome)) + "\n")
        answers.flush()
        if outcome.state == "stopped":
            return


def _stop_without_parent(parent: int) -> None:
    """Stop this process, with a checkpoint, if the driver that started it was killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()

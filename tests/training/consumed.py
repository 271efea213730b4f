"""The command line, recording which rows this process trains on: `python -m tests.training.consumed train ...`."""

import hashlib
import json
import os
from pathlib import Path

from lengthwise.__main__ import run
from lengthwise.training.text import TextRows

FILE = Path(os.environ["LENGTHWISE_CONSUMED"]) / f"consumed-{os.environ.get('RANK', 0)}-{os.getpid()}.jsonl"
batch_of = TextRows.batch


def recorded(self, indices):
    batch = batch_of(self, indices)
    FILE.parent.mkdir(parents=True, exist_ok=True)
    with FILE.open("a") as file:
        for row, index in enumerate(indices):
            content = f"{batch.ids_BT[row].tolist()} {batch.documents[row]}"
            file.write(json.dumps([index, hashlib.sha256(content.encode()).hexdigest()]) + "\n")
    return batch


TextRows.batch = recorded

if __name__ == "__main__":
    run()

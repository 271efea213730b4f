"""An S3 server for tests: moto behind a door that can refuse, lose, delay and contest what is written."""

from __future__ import annotations

import logging
import os
import random
import socket
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from unittest import mock

BUCKET = "lengthwise-test"
CONFLICT = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>ConditionalRequestConflict</Code>"
    b"<Message>The conditional request cannot succeed due to a conflicting operation.</Message></Error>"
)
FAILED = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>InternalError</Code>"
    b"<Message>We encountered an internal error. Please try again.</Message></Error>"
)


class Door:
    """A WSGI application before moto's: requests of the given methods are done badly, with these probabilities.

    refused   500, nothing is stored            late      stored after some seconds
    lost      stored, the answer never comes    stray     no answer comes, and it is stored some seconds later
    conflict  409, as S3 says to two who create one name at the same moment; nothing is stored
    """

    def __init__(self, app) -> None:
        self._app, self._storing = app, threading.Lock()
        self.rates: dict[str, float] = {}
        self.methods, self.seconds, self.left = {"PUT"}, 2.0, 0
        self.rng, self.counts = random.Random(0), Counter()
        self._deciding, self._strays = threading.Lock(), []

    @contextmanager
    def faulty(self, methods=("PUT",), seconds=2.0, seed=0, times=1_000_000, **rates):
        """Do it badly meanwhile; at the end everything that was sent has arrived. Gives the count of each fault."""
        self.methods, self.seconds, self.left = set(methods), seconds, times
        self.rng, self.counts, self.rates = random.Random(seed), Counter(), rates
        try:
            yield self.counts
        finally:
            self.rates = {}
            for stray in self._strays:
                stray.join(30)
            self._strays.clear()

    def __call__(self, environ, start_response):
        method, exclusive = environ["REQUEST_METHOD"], environ.get("HTTP_IF_NONE_MATCH") == "*"
        self.counts[method] += 1
        fault = self._fault(exclusive) if method in self.methods else None
        if fault in {"refused", "conflict"}:
            status, body = ("500 Internal Server Error", FAILED) if fault == "refused" else ("409 Conflict", CONFLICT)
            _drain(environ)
            start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [] if method == "HEAD" else [body]
        if fault == "late":
            time.sleep(self.seconds)
        if fault in {"lost", "stray"}:
            self._store_unheard(environ, self.seconds if fault == "stray" else 0.0)
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            start_response("200 OK", [("Content-Length", "0"), ("Connection", "close")])
            return []
        return self._stored(environ, start_response)

    def _fault(self, exclusive: bool) -> str | None:
        with self._deciding:
            drawn = self.rng.random()
            for fault, rate in self.rates.items() if self.left else ():
                if drawn < rate and (exclusive or fault != "conflict"):
                    self.left -= 1
                    self.counts[fault] += 1
                    return fault
                drawn -= rate
        return None

    def _stored(self, environ, start_response):
        if environ["REQUEST_METHOD"] != "PUT":
            return self._app(environ, start_response)
        with self._storing:  # S3 looks and stores in one; moto looks, then stores
            return list(self._app(environ, start_response))

    def _store_unheard(self, environ, seconds: float) -> None:
        from io import BytesIO

        kept = {**environ, "wsgi.input": BytesIO(_drain(environ))}

        def store():
            time.sleep(seconds)
            self._stored(kept, lambda *answer: None)

        if not seconds:
            return store()
        stray = threading.Thread(target=store, daemon=True)
        self._strays.append(stray)
        stray.start()


def _drain(environ) -> bytes:
    """The whole body: aws-chunked bodies come with a length too."""
    return environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))


@contextmanager
def served(host="127.0.0.1", port=0):
    """A server, on a free port of this machine, with a bucket; the environment that leads s3fs there is set meanwhile.

    Gives the door. AWS_ENDPOINT_URL is all that a user sets beside the usual credentials.
    """
    import boto3
    import s3fs
    from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    door = Door(create_backend_app("s3"))
    handler = type("Handler", (MotoRequestHandler,), {"disable_nagle_algorithm": True})
    server = make_server(host, port, door, threaded=True, request_handler=handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        with mock.patch.dict(os.environ, variables(f"http://127.0.0.1:{server.port}")):
            s3fs.S3FileSystem.clear_instance_cache()  # one that is kept knows another server
            boto3.client("s3").create_bucket(Bucket=BUCKET)
            yield door
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def variables(endpoint):
    """What leads s3fs to a server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "2",  # of botocore for a request; s3fs itself tries five times where no answer came
    }


def forward(port: int, behind: int) -> None:
    """Pass every connection on to another port: a server that can be stopped and killed, and keeps what it stores."""
    listener = socket.create_server(("127.0.0.1", port))
    print("serving", flush=True)
    while True:
        client = listener.accept()[0]
        server = socket.create_connection(("127.0.0.1", behind))
        for one, other in ((client, server), (server, client)):
            threading.Thread(target=_pump, args=(one, other), daemon=True).start()


def _pump(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    for end in (one, other):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    if sys.argv[1] == "forward":
        forward(int(sys.argv[2]), int(sys.argv[3]))
    with served(sys.argv[1], int(sys.argv[2])):
        print("serving", flush=True)
        threading.Event().wait()

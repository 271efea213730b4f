"""`python -m lengthwise` is `lengthwise`, the command line."""

import signal


def run() -> None:
    """Start the command line; Ctrl-C while modules are imported ends the process without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from lengthwise.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()


if __name__ == "__main__":
    run()

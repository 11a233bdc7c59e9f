"""`python -m fredsim` is the `fredsim` command, which begins here, too."""

import signal

__all__ = ["command"]


def command() -> None:
    """Run the command; an interrupt while it is imported ends the process at once, without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fredsim.system import memory

    memory.ends_after_command = True
    with memory.importing():
        from fredsim.cli import main
    main()


if __name__ == "__main__":
    command()

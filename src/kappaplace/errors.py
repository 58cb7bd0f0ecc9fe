"""Exceptions with a message for the user."""

from __future__ import annotations


class KappaPlaceError(Exception):
    """Bad input or an unusable environment; the message states the problem and what to do.

    The command line prints the message and exits with code 2. Catch this class in your own code.
    """


class MapLocked(KappaPlaceError):
    """Another process is writing to the folder; the message contains its process ID and its host."""


class MissingExtra(KappaPlaceError):
    """A feature needs an extra that is not installed.

    Args:
        feature: Feature that needs the extra, as the subject of a sentence, such as "Reading videos".
        extra: Name of the extra.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f'{feature} needs the extra "{extra}". Install it with: {install_command(extra)}')


def install_command(extra: str) -> str:
    """Return the command that installs an extra; pip adds its packages to the installed kappaplace."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        version("kappaplace")
    except PackageNotFoundError:  # a source tree without installation
        return f"pip install -e '.[{extra}]'"
    return f"pip install 'kappaplace[{extra}]'"

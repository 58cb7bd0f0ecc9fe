"""Exceptions with a message for the user."""

from __future__ import annotations


class KappaPlaceError(Exception):
    """Bad input or an unusable environment; the message states the problem and what to do.

    The command line prints the message and exits with code 2. Catch this class in your own code.
    """


class MissingExtra(KappaPlaceError):
    """A feature needs an extra that is not installed.

    Args:
        feature: What needs it, as the subject of a sentence: "Reading videos".
        extra: Name of the extra.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f'{feature} needs the extra "{extra}". Install it with: {install_command(extra)}')


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra, however kappaplace itself was installed."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = [text.partition(";") for text in requires("kappaplace") or ()]
    except PackageNotFoundError:  # a source tree that is not installed
        lines = []
    packages = [name.strip() for name, _, rule in lines if f'extra == "{extra}"' in rule.replace("'", '"')]
    if not packages:
        return f"pip install -e '.[{extra}]'"
    return f"pip install 'kappaplace[{extra}]'"

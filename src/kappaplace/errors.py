"""The exceptions that users are meant to see."""

from __future__ import annotations


class KappaPlaceError(Exception):
    """Bad input or an unusable environment, in one clear message: what, where, what to do.

    The command line prints the message and exits with code 2; library users catch this class.
    """


class MissingExtra(KappaPlaceError):
    """A feature needs packages of an extra that is not installed.

    Args:
        feature: What needs them, as the subject of a sentence: "Reading videos".
        extra: Name of the extra.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f'{feature} needs the extra "{extra}". Install it with: {install_command(extra)}')


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra, wherever kappaplace itself came from."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = [text.partition(";") for text in requires("kappaplace") or ()]
    except PackageNotFoundError:  # a source tree without installation
        lines = []
    packages = [name.strip() for name, _, rule in lines if f'extra == "{extra}"' in rule.replace("'", '"')]
    if not packages:
        return f"pip install -e '.[{extra}]'"
    return " ".join(["pip install", *(f"'{each}'" for each in packages)])

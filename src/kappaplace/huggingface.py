"""Files to and from a repository on the Hugging Face hub (extra ``hub``): named ones, and no others.

What is in a repository was written by somebody else, so nothing but the files that a reader asks for by name
is ever downloaded, every name is checked before it becomes a path, and what arrives appears at its place
only when it is whole.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder

Kind = Literal["model", "dataset"]
"""What the hub calls a repository: ours hold a model or, as a dataset, a map."""
SUFFIXES = (".json", ".safetensors", ".npy", ".bin", ".md")
"""Everything that a model or a map is made of; pickles and code are not among it."""
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


def checked_name(name: str) -> str:
    """A relative path of plain parts with a known ending, or an error: no ``..``, no root, no hidden file.

    >>> checked_name("segments/000000/kappa.npy")
    'segments/000000/kappa.npy'
    """
    plain = all(_PART.fullmatch(part) for part in name.split("/"))
    if not plain or not name.endswith(SUFFIXES):
        raise KappaPlaceError(
            f"{name!r} is not a name that a model or a map gives to a file; nothing was downloaded under it."
        )
    return name


@dataclass(frozen=True)
class Repository:
    """One repository at one commit, so that all files of a pull belong together."""

    name: str
    kind: Kind
    commit: str
    files: frozenset[str]

    @classmethod
    def find(cls, name: str, kind: Kind, revision: str = "") -> Repository:
        """Look up the commit that a revision (a branch, a tag, a commit) means now, and its files."""
        with _telling(name, kind):
            found = _api().repo_info(name, repo_type=kind, revision=revision or None)
        files = frozenset(each.rfilename for each in found.siblings or ())
        return cls(name, kind, str(found.sha), files)

    def fetch(self, name: str, into: Path) -> Path:
        """Download one file to the same relative path below a folder."""
        if checked_name(name) not in self.files:
            raise KappaPlaceError(f"The repository {self.name} holds no {name}: it is no {_what(self.kind)}.")
        with _telling(self.name, self.kind):
            file = _api().hf_hub_download(
                self.name, name, repo_type=self.kind, revision=self.commit, local_dir=into
            )
        return Path(file)


@contextmanager
def arriving(out: Path) -> Iterator[Path]:
    """A folder to download into; it becomes ``out`` at the end, and is gone if anything went wrong."""
    if out.exists():
        raise KappaPlaceError(f"{out} is there already; pull into a new folder.")
    make_folder(out.parent)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
        shutil.rmtree(part / ".cache", ignore_errors=True)  # the client's own notes on what it downloaded
        os.rename(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def push_files(
    files: Mapping[str, Path], name: str, kind: Kind, *, replaces: tuple[str, ...] = (), public: bool = False
) -> str:
    """Put files into a repository in one commit, made if need be; the address of the repository.

    ``replaces`` are patterns of names that belong to us: such files of an earlier push that are not among
    the new ones go. A new repository is private unless ``public`` is said.
    """
    api = _api()
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    adds = [CommitOperationAdd(checked_name(path), str(file)) for path, file in files.items()]
    with _telling(name, kind):
        address = api.create_repo(name, repo_type=kind, private=not public, exist_ok=True)
        old = [
            path
            for path in api.list_repo_files(name, repo_type=kind)
            if path not in files and any(fnmatchcase(path, pattern) for pattern in replaces)
        ]
        operations = [*adds, *(CommitOperationDelete(path) for path in old)]
        message = f"Upload of a {_what(kind)} by kappaplace"
        api.create_commit(name, operations, commit_message=message, repo_type=kind)
    return str(address)


def _what(kind: Kind) -> str:
    return "model" if kind == "model" else "map"


def _api() -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise KappaPlaceError(
            "The Hugging Face hub needs its client, which is not installed: pip install 'kappaplace[hub]'."
        ) from None
    # Read at every call: the client itself looks at its environment only once.
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="kappaplace")


@contextmanager
def _telling(name: str, kind: Kind) -> Iterator[None]:
    """Whatever the client raises as one sentence: it has a dozen classes for it, others with each release."""
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError:
        raise KappaPlaceError(f"{name!r} is no repository of the hub; give it as OWNER/NAME.") from None
    except errors.RevisionNotFoundError:
        raise KappaPlaceError(f"The repository {name} has no such branch, tag or commit.") from None
    except errors.RepositoryNotFoundError:
        raise KappaPlaceError(
            f"The hub shows no {kind} repository {name}: it is not there, or it is private; in the second "
            "case log in with `hf auth login` or set HF_TOKEN."
        ) from None
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise KappaPlaceError(
                f"The hub refuses access to {name}: log in with `hf auth login`, or set HF_TOKEN to a token "
                "that may do this."
            ) from None
        reason = (str(error).strip() or type(error).__name__).partition("\n")[0].rstrip(".")
        raise KappaPlaceError(
            f"The hub could not be asked for {name} ({reason}); nothing here was changed."
        ) from None

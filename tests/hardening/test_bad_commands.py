"""Every command, given nonsense: one sentence, exit code 2, no traceback, and nothing written over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hardening.commands import COMMANDS, Command, run
from tests.hardening.valid import BASE, world

OUTPUTS = {"out", "csv", "html", "page", "picture", "report", "state"}
"""Parameters that name what is written."""
NO_INPUT = {"city", "data-city", "data-layouts", "demo", "doctor", "models-list"}
"""Commands that read no file."""
EXTRA: dict[str, tuple[str, ...]] = {
    "audit": ("--threshold", "0.5"),
    "geotag": ("--map", "BROKEN"),
    "train": ("kappa-pt", "--data", "BROKEN", "--out", "OUT"),
    "evaluate-model": ("BROKEN",),
    "evaluate-paper": ("BROKEN",),
    "bench": ("--only", "metrics", "--check", "BROKEN"),
}
"""How commands are given a file that they could do without."""
PIECES: dict[str, bytes | None] = {
    "missing.parquet": None,
    "empty.csv": b"",
    "empty.npz": b"",
    "garbage.parquet": bytes(range(256)) * 8,
    "garbage.jpg": bytes(range(256)) * 8,
    "garbage.pt": bytes(range(256)) * 8,
    "text.csv": "{[ü,€\n\0nonsense,\n".encode(),
    "text.tum": "{[ü,€\n\0nonsense,\n".encode(),
    "list.json": b"[1, null]",
    "zip.npz": b"PK\x03\x04" + b"\0" * 60,
    "cut.parquet": b"PAR1" + b"\xff" * 40 + b"PAR1",
    "cut.onnx": b"\x08\x07\x12\xff",
}


def broken_files(folder: Path) -> list[Path]:
    """Things that are no map, no model, no table and no image, under names that are not ASCII."""
    folder.mkdir()
    files = [folder / f"größe 東京 {name}" for name in PIECES]
    for file, content in zip(files, PIECES.values(), strict=True):
        if content is not None:
            file.write_bytes(content)
    (folder / "dangling.map").symlink_to(folder / "nowhere")
    (folder / "loop.parquet").symlink_to(folder / "loop.parquet")
    for name in ("leer ü", "damaged.map", "listed.map"):
        (folder / name).mkdir()
    for name in ("manifest.json", "card.json", "results.json"):
        (folder / "damaged.map" / name).write_bytes(bytes(range(256)))
        (folder / "listed.map" / name).write_bytes(b"[1, null]")
    return [
        *files,
        *(folder / name for name in ("dangling.map", "loop.parquet", "leer ü", "damaged.map", "listed.map")),
    ]


def words_for(command: Command, broken: Path, out: Path) -> list[str]:
    """A call of the command that reads nothing but broken files."""
    words = list(command.words)
    for option in command.options:
        if not option.required:
            continue
        value = str(out if option.name in OUTPUTS else broken)
        if option.name == "repo":
            value = "no such/repository/ü"
        words += [option.flag, value] if option.flag else [value]
    table = {"BROKEN": str(broken), "OUT": str(out)}
    return words + [table.get(word, word) for word in EXTRA.get(str(command), ())]


@pytest.mark.parametrize("command", [each for each in COMMANDS if str(each) not in NO_INPUT], ids=str)
def test_broken_files_are_told_in_one_sentence(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("KAPPAPLACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for broken in broken_files(tmp_path / "in"):
        before = broken.read_bytes() if broken.is_file() else None
        assert run(monkeypatch, *words_for(command, broken, tmp_path / "out")) == 2, broken.name
        said = capsys.readouterr()
        assert "Traceback" not in said.err + said.out
        assert said.err.strip(), broken.name
        if before is not None:
            assert broken.read_bytes() == before


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_unknown_options_and_words_for_numbers(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    calls = [["--no-such-option"]]
    calls += [
        [f"{each.flag}=many"] for each in command.options if each.flag and each.kind in ("int", "float")
    ]
    for words in calls:
        assert run(monkeypatch, *command.words, *words) == 2, words
        said = capsys.readouterr()
        assert "Traceback" not in said.err + said.out
    assert not list(tmp_path.iterdir())


HUGE = str(10**30)
DRAWS = {("city", "--queries"), ("city", "--seed"), ("demo", "--seed"), ("demo", "--steps")}
"""Where a large number is taken at its word, and pictures are drawn."""
REFUSED = {"int": ("-1", "1.5", "nan"), "float": ("-1", "nan", "inf", "-inf", "1e308")}
NEGATIVE_IS_FINE = {("audit", "--threshold"), ("slam-run", "--agreement")}
"""A score or a cosine."""
KEPT = {("map-label", "--batch-size"), ("slam-run", "--batch-size")}
"""Without a meaning where everything is embedded already, as in the second run of this test."""
ALLOWED = {("audit", "--threshold"), ("slam-run", "--drift"), ("slam-run", "--recent")}
"""So much that nothing is ever refused, or looked at."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    world(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("KAPPAPLACE_CACHE", str(folder / "cache"))
        assert run(patch, "evaluate", *BASE["evaluate-model"].split()) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("command", [each for each in COMMANDS if str(each) in BASE], ids=str)
def test_numbers_that_make_no_sense(
    command: Command, made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each number of a command that would work without it: negative, NaN, infinite, beyond all bounds."""
    if str(command) == "slam-run":
        pytest.importorskip("gtsam")
    if str(command) == "serve":
        pytest.importorskip("fastapi")
    monkeypatch.chdir(made)
    monkeypatch.setenv("KAPPAPLACE_CACHE", str(made / "cache"))
    words = [*command.words, *BASE[str(command)].split()]
    if str(command) not in ("city", "demo", "serve"):  # these take long, or for ever
        assert run(monkeypatch, *words) == 0, capsys.readouterr().err
    for option in command.options:
        where = (str(command), option.flag)
        for value in REFUSED.get(option.kind, ()):
            code = run(monkeypatch, *words, f"{option.flag}={value}")
            said = capsys.readouterr()
            assert "Traceback" not in said.err + said.out
            fine = where in KEPT or (where in NEGATIVE_IS_FINE and value == "-1")
            fine = fine or (where in ALLOWED and value in ("inf", "1e308"))
            assert code == 2 or fine, (option.flag, value, said.err)
        if option.kind == "int" and where not in DRAWS:
            assert run(monkeypatch, *words, f"{option.flag}={HUGE}") in (0, 2)
            capsys.readouterr()

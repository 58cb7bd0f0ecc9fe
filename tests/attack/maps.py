"""Attacks on the files of a map: flipped bits, and maps whose files contradict each other.

python -m tests.attack.maps [TRIES] [SEED]

A try is harmless if the file is rejected with a message, or if every answer stays the same.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from kappaplace import Preprocessing
from kappaplace.calibration.sources import load_calibration, save_calibration
from kappaplace.errors import KappaPlaceError
from kappaplace.files import sealed
from kappaplace.maps import LocalizeOptions, PlaceMap
from kappaplace.maps.exchange import export_map
from kappaplace.maps.store import verify_folder
from kappaplace.maps.store.manifest import MANIFEST, read_manifest
from kappaplace.maps.store.segments import file_record
from kappaplace.models.embedding.store import EmbeddingStore
from kappaplace.models.place_model import PlaceModel
from kappaplace.records import to_plain
from kappaplace.retrieval import EngineOptions, open_engine
from kappaplace.types import Embeddings
from tests.attack import Row

GOLDEN = Path(__file__).parents[1] / "golden" / "v0.1.0"
MAPS = ("float32", "float16", "int8", "pq")
QUERIES = 6
SKIP = ("writer.lock",)
REFUSED, SAME, BAD, USED = "rejected", "same answers", "wrong", "no traceback"


def golden_maps(folder: Path) -> list[Path]:
    """Copy small maps with calibrations and removed rows, in the format of this version."""
    folders = [folder / f"{name}.map" for name in MAPS]
    for out in folders:
        shutil.copytree(GOLDEN / out.name, out)
        PlaceMap.open(out).compact()
        PlaceMap.open(out).remove(next(PlaceMap.open(out).store.names()))
    return folders


def queries() -> tuple[Embeddings, list[str]]:
    """Return stored descriptors and κ of queries to these maps."""
    with np.load(GOLDEN / "queries.npz") as stored:
        columns = Embeddings(stored["descriptor"][:QUERIES], stored["kappa"][:QUERIES])
        return columns, stored["names"][:QUERIES].tolist()


def map_answers(folder: Path) -> Any:
    """Return every answer of a map, without times."""
    embeddings, names = queries()
    opened = PlaceMap.open(folder)
    answers = opened.localize_embeddings(embeddings, names, LocalizeOptions(k=4, rerank=0))
    plain = [answer.to_dict() | {"seconds": None} for answer in answers]
    thumbnails = [opened.store.thumbnail(row) for row in range(0, len(opened), 7)]
    return json.loads(json.dumps(plain)), thumbnails


def outcome(attempt: Callable[[], Any], expected: Any) -> str:
    """Return how an attempt ended."""
    try:
        answer = attempt()
    except KappaPlaceError:
        return REFUSED
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return SAME if equal(answer, expected) else BAD


def equal(one: Any, other: Any) -> bool:
    """Return whether two answers are the same, arrays included."""
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=True)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


@contextlib.contextmanager
def flipped(file: Path, bit: int) -> Iterator[None]:
    """Flip one bit of a file; restore the file afterwards."""
    content = file.read_bytes()
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    file.write_bytes(changed)
    try:
        yield
    finally:
        file.write_bytes(content)


def flips(name: str, folder: Path, answers: Callable[[], Any], tries: int, rng: random.Random) -> Row:
    """Flip single bits of all files below a folder, as many in each.

    Args:
        name: Name of the attack.
        folder: The folder.
        answers: Reads the files and returns the answers.
        tries: Number of flips.
        rng: Random numbers.
    """
    expected, start, results = answers(), time.perf_counter(), Counter[str]()
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.stat().st_size)
    files = [file for file in files if file.name not in SKIP]
    for number in range(tries):
        file = files[number % len(files)]
        bit = rng.randrange(8 * file.stat().st_size)
        with flipped(file, bit):
            result = outcome(answers, expected)
        if result not in (REFUSED, SAME):
            print(f"{name}: bit {bit} of {file.relative_to(folder)}: {result}"[:300], file=sys.stderr)
        results[result if result in (REFUSED, SAME, BAD) else "traceback"] += 1
    return row(name, tries, results, start)


def row(name: str, tries: int, results: Counter[str], start: float) -> Row:
    """Return the row of an attack."""
    bad = tries - results[REFUSED] - results[SAME] - results[USED]
    text = ", ".join(f"{count:,} {result}" for result, count in sorted(results.items()))
    return Row(name, tries, bad, text, time.perf_counter() - start)


def map_flips(folder: Path, tries: int, rng: random.Random) -> Row:
    """Flip bits of a map; `verify` must report every changed byte that means something."""

    def content() -> list[Any]:
        files = [file.read_bytes() for file in sorted(folder.rglob("*")) if file.suffix in (".npy", ".bin")]
        return [files, read_manifest(folder)]

    before = content()

    def answers() -> Any:
        answer, (_, problems) = map_answers(folder), verify_folder(folder)
        return answer, bool(problems) or content() == before

    return flips(f"bit flips, {folder.name}", folder, answers, tries, rng)


def index_flips(folder: Path, tries: int, rng: random.Random) -> Row:
    """Flip bits of the file of a search index."""
    numbers = np.random.default_rng(0)
    rows, asked = (numbers.normal(size=(count, 32)).astype(np.float32) for count in (1200, 8))
    rows, asked = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (rows, asked))

    def answers() -> Any:
        options = EngineOptions(rebuild="if stale")
        with open_engine(rows, kind="ivf-pq", folder=folder, options=options) as engine:
            return tuple(engine.search(asked, 10))

    return flips("bit flips, search index", folder, answers, tries, rng)


def cache_flips(folder: Path, tries: int, rng: random.Random) -> Row:
    """Flip bits of the stored embeddings of an evaluation."""
    model = PlaceModel.create("resnet_tiny", dim=8, preprocessing=Preprocessing(32, "exact")).eval()
    images, cache = [str(folder / f"{number}.png") for number in range(6)], folder / "cache"
    for number, image in enumerate(images):
        Image.new("RGB", (32, 32), (40 * number, 90, 200 - 30 * number)).save(image)

    def answers() -> Any:
        # A damaged row is embedded again, in another batch, which rounds differently.
        return [
            np.round(part, 4) for part in EmbeddingStore.of(model, cache).embed(images) if part is not None
        ]

    return flips("bit flips, evaluation cache", cache, answers, tries, rng)


def calibration_flips(folder: Path, tries: int, rng: random.Random) -> Row:
    """Flip bits of calibration files."""
    files = sorted((GOLDEN / "calibrations").glob("*.json"))
    for file in files:
        save_calibration(load_calibration(file), folder / file.name)

    def answers() -> Any:
        return [load_calibration(folder / file.name).to_dict() for file in files]

    return flips("bit flips, calibrations", folder, answers, tries, rng)


VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 3, 2**40, 2**70, 0.5, -1e300, float("nan"), float("inf"), "", "abc", "../x"),
    *("/etc/passwd", "metres:-1", "EPSG:0", "\0", [], [1], [None], {}, {"a": 1}),
)
"""Values that replace a value of the manifest."""


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container of a JSON value with each of its keys."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from leaves(value[key])


def craft_manifest(folder: Path, rng: random.Random) -> str:
    """Replace or remove one value of the manifest, with a correct checksum."""
    file = folder / MANIFEST
    values = json.loads(file.read_text())
    holder, key = rng.choice(list(leaves(values)))
    if rng.random() < 0.1:
        del holder[key]
        change = f"without {key}"
    else:
        holder[key] = rng.choice(VALUES)
        change = f"{key} = {holder[key]!r}"
    file.write_text(json.dumps(sealed(values)))
    return change


ARRAYS: dict[str, Callable[[Any], Any]] = {
    "float": lambda a: a.astype(float) + 0.5,
    "narrow": lambda a: a.astype(np.int16 if a.dtype.kind in "iu" else np.float32),
    "text": lambda a: np.full(a.shape, "x"),
    "complex": lambda a: a.astype(complex),
    "one column more": lambda a: np.concatenate([a, a], axis=-1),
    "one column less": lambda a: a[..., :-1],
    "2-D": lambda a: a[:, None],
    "scalar": lambda a: a.reshape(-1)[0],
    "empty": lambda a: a[:0],
    "shorter": lambda a: a[:-1],
    "longer": lambda a: np.concatenate([a, a]),
    "reversed": lambda a: a[::-1],
    "negative": lambda a: -np.abs(a.astype(np.int64 if a.dtype.kind in "iu" else a.dtype)),
    "huge": lambda a: a + (np.array(2**30).astype(a.dtype) if a.dtype.itemsize > 2 else 1),
    "NaN": lambda a: np.full(a.shape, np.nan, a.dtype if a.dtype.kind == "f" else float),
    "infinite": lambda a: np.full(a.shape, np.inf, a.dtype if a.dtype.kind == "f" else float),
    "zero": lambda a: np.zeros_like(a),
    "Fortran order": lambda a: np.asfortranarray(a),
    "big endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
}
"""Changes of an array."""


def craft_array(folder: Path, rng: random.Random) -> str:
    """Change one array, and record its checksums."""
    manifest = read_manifest(folder)
    plain = to_plain(manifest)
    extras = [value for value in plain.values() if isinstance(value, dict) and "record" in value]
    places = [(folder / extra["file"], extra, "record") for extra in extras]
    for segment in plain["segments"]:
        base = folder / "segments" / segment["name"]
        places += [
            (base / name, segment["files"], name) for name in segment["files"] if name.endswith(".npy")
        ]
    file, holder, key = rng.choice(places)
    change = rng.choice(list(ARRAYS))
    with np.errstate(all="ignore"):
        np.save(file, ARRAYS[change](np.load(file)))
    holder[key] = to_plain(file_record(file))
    (folder / MANIFEST).write_text(json.dumps(sealed(plain)))
    return f"{file.relative_to(folder)} {change}"


def use(folder: Path, change: bool) -> None:
    """Do with a map whatever a user can do without its model and its images.

    Args:
        folder: The map.
        change: Whether to change it as well, which waits for the disk.
    """
    steps: list[Callable[[], object]] = [
        lambda: verify_folder(folder),
        lambda: map_answers(folder),
        lambda: PlaceMap.open(folder).info(),
        lambda: PlaceMap.open(folder).notes(),
        lambda: list(PlaceMap.open(folder).store.names()),
        lambda: [PlaceMap.open(folder).store.image_path(row) for row in (0, 1)],
        lambda: export_map(PlaceMap.open(folder).store, folder / "out.npz"),
        lambda: export_map(PlaceMap.open(folder).store, folder / "out.geojson"),
    ]
    changes: list[Callable[[], object]] = [
        lambda: PlaceMap.open(folder).remove(next(iter(PlaceMap.open(folder).store.names()))),
        lambda: PlaceMap.open(folder).compact(),
    ]
    for step in steps + changes * change:
        with contextlib.suppress(KappaPlaceError):
            step()


def crafted(whole: Path, tries: int, rng: random.Random, scratch: Path) -> Row:
    """Use maps whose files contradict each other, although their checksums are correct."""
    start, results = time.perf_counter(), Counter[str]()
    for number in range(tries):
        folder = scratch / "crafted.map"
        shutil.copytree(whole, folder)
        change = (craft_manifest if number % 2 else craft_array)(folder, rng)
        try:
            use(folder, number % 8 < 2)
            results[USED] += 1
        except Exception as error:
            print(f"{whole.name}: {change}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
            results["traceback"] += 1
        shutil.rmtree(folder)
    return row(f"crafted maps, {whole.name}", tries, results, start)


def run(tries: int, seed: int) -> list[Row]:
    """Attack small maps, an index, an evaluation cache and calibrations.

    Args:
        tries: Number of flipped bits of maps, and of crafted maps; the other files get a quarter of it.
        seed: Random seed.

    Returns:
        One row per attack.
    """
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        maps = golden_maps(scratch)
        part = -(-tries // len(maps))
        rows = [map_flips(folder, part, rng) for folder in maps]
        rows += [crafted(folder, part, rng, scratch) for folder in maps]
        for attack in (index_flips, cache_flips, calibration_flips):
            folder = scratch / attack.__name__
            folder.mkdir()
            rows.append(attack(folder, part, rng))
        return rows


if __name__ == "__main__":
    for each in run(*(int(word) for word in (*sys.argv[1:], "200", "0")[:2])):
        print(f"{each.attack}: {each.tries:,} tries, {each.bad} bad ({each.result}; {each.seconds:.1f} s)")

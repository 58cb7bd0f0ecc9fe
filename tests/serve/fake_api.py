"""A small stand-in for the service: the page, and canned answers about a few streets of the synthetic city.

What it says of matches is made up from how far they are, so that every decision and reason occurs; it is here
to test the page and says nothing about recognition.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import parse_qs, urlsplit

import numpy as np
from PIL import Image, ImageFilter

from kappaplace.calibration.decision import decide_matches, rule_by_probability
from kappaplace.data import unproject
from kappaplace_city import CityViews, SyntheticCity

PAGE = Path(__file__).parents[2] / "src" / "kappaplace" / "serve" / "page"
CSP = "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self'"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
RADIUS = 25.0
SIZE = (240, 320)
DEMOS = ("clear", "blurred", "ambiguous", "elsewhere")


@dataclass
class Behavior:
    """How the stand-in misbehaves; tests set it."""

    calibrated: bool = True
    references: bool = True
    kappa: bool = True
    posed: bool = True
    token: str = ""
    busy: int = 0
    """Localize answers 429 so often before it answers."""
    error: tuple[int, str] | None = None
    delay: float = 0.0
    maps: tuple[str, ...] = ("town",)
    tiles: bool = False
    attribution: str = ""
    frame: str = "EPSG:32610"
    radius: float | None = 18.4
    evidence: bool = True
    labels: bool = True
    drifting: bool = False
    alone: bool = False
    """The estimate is made of the best match only."""
    name: str = ""
    """Of every reference, in place of its own."""
    asked: list[str] = field(default_factory=list)
    """Addresses, in the order of the requests."""
    sent: list[bytes] = field(default_factory=list)
    """Bodies of requests to localize."""
    labeled: list[dict[str, str]] = field(default_factory=list)

    def counts(self) -> dict[str, dict[str, int]]:
        """What was said, as if all answers were accepted."""
        said = [each["label"] for each in self.labeled]
        return {"accept": {key: said.count(key) for key in ("right", "wrong", "unknown")}} if said else {}


class Town:
    """References on the streets of a district, and numbers for them."""

    @cached_property
    def views(self) -> CityViews:
        every = SyntheticCity(seed=3, blocks=(4, 4)).views(
            "test", spacing=8.0, queries=40, query_strength=0.15, seed=3
        )
        return every

    @cached_property
    def rows(self) -> np.ndarray:
        return np.flatnonzero(~self.views.is_query)

    @cached_property
    def queries(self) -> np.ndarray:
        return np.flatnonzero(self.views.is_query)

    @cached_property
    def references(self) -> list[dict[str, Any]]:
        rng = np.random.default_rng(0)
        views, rows = self.views, self.rows
        kappa = 420 * np.exp(-1.4 * views.featureless[rows] + rng.normal(0, 0.18, len(rows)))
        alias = 0.52 + 0.33 * views.aliased[rows] + rng.normal(0, 0.03, len(rows))
        at = views.positions[rows]
        return [
            {
                "id": i,
                "x": float(at[i, 0]),
                "y": float(at[i, 1]),
                "kappa": float(kappa[i]),
                "distinctiveness": float(alias[i]),
                "heading": float(views.heading[rows[i]]),
                "name": _name(at[i]),
                "thumbnail": f"/v1/references/{i}/thumbnail",
            }
            for i in range(len(rows))
        ]

    def picture(self, row: int) -> Image.Image:
        return Image.fromarray(self.views.render(SIZE, np.array([row]), 1)[0])

    def query_row(self, demo: int) -> int:
        """A view that suits what the demo query is to show."""
        views, queries = self.views, self.queries
        plain = views.featureless[queries] + views.aliased[queries]
        if DEMOS[demo] == "ambiguous":
            return int(queries[np.argmax(views.aliased[queries])])
        return int(queries[np.argsort(plain, kind="stable")[demo]])

    def query(self, demo: int) -> bytes:
        image = self.picture(self.query_row(demo))
        if DEMOS[demo] == "blurred":
            image = image.filter(ImageFilter.GaussianBlur(5))
        return _jpeg(image)

    def answer(self, demo: int, k: int, behavior: Behavior) -> dict[str, Any]:
        """What the service would say of it, in the shape of `Localization.to_dict`."""
        kind, row = DEMOS[demo], self.query_row(demo)
        at, heading = self.views.positions[row], float(self.views.heading[row])
        here = self.views.positions[self.rows]
        turned = np.abs((self.views.heading[self.rows] - heading + 180) % 360 - 180)
        gap = np.hypot(*(here - at).T) + 0.3 * turned
        order = np.argsort(gap, kind="stable")
        far = order[np.hypot(*(here[order] - here[order[0]]).T) > 60][:: max(1, len(order) // 40)]
        near = order[: 5 if kind == "clear" else 2]
        found = np.concatenate([near, far])[:k]
        top, drop, probability, kappa, uncertainty = {
            "clear": (0.88, 0.035, 0.972, 344.0, 0.06),
            "blurred": (0.71, 0.03, 0.62, 96.0, 0.31),
            "ambiguous": (0.83, 0.008, 0.55, 290.0, 0.36),
            "elsewhere": (0.52, 0.006, 0.07, 201.0, 0.83),
        }[kind]
        similar = top - drop * np.arange(len(found))
        own = probability * np.exp(-0.045 * np.hypot(*(here[found] - here[found[0]]).T))
        own[0] = probability
        first = "accept" if probability >= 0.95 else "reject" if probability <= 0.2 else "doubtful"
        apart = np.hypot(*(here[found] - here[found[0]]).T) > 2 * RADIUS
        rule = rule_by_probability(0.05, 0.2)
        decisions = decide_matches(rule, [first], [probability], own[None], apart[None])[0]
        matches = [
            {
                "rank": i + 1,
                "name": behavior.name or _name(here[r]),
                "x": float(here[r, 0]),
                "y": float(here[r, 1]),
                "heading": float(self.views.heading[self.rows[r]]),
                "time": None,
                "similarity": float(similar[i]),
                "kappa": self.references[r]["kappa"] if behavior.kappa else None,
                "uncertainty": float(1 - similar[i]),
                "probability": float(own[i]) if behavior.calibrated else None,
                "decision": str(decisions[i]) if behavior.calibrated else None,
                "reference": int(r),
                "thumbnail": f"/v1/references/{r}/thumbnail",
            }
            for i, r in enumerate(found)
        ]
        near = near[:1] if behavior.alone else near
        used = here[near]
        center = used.mean(axis=0)
        spread = math.sqrt(float(((used - center) ** 2).sum(axis=1).mean()))
        pose = {"x": center[0], "y": center[1], "heading": heading, "spread": spread, "matches": len(near)}
        if not behavior.posed:
            matches, pose = [{**match, "x": None, "y": None} for match in matches], None
        margin = {"clear": -0.21, "blurred": -0.09, "ambiguous": -0.008, "elsewhere": -0.05}[kind]
        lat, lon = (None, None)
        if behavior.frame != "local" and pose is not None:
            lat, lon = (float(v[0]) for v in unproject(np.array([[pose["x"], pose["y"]]]), behavior.frame))
        radius = behavior.radius if pose is not None else None
        return {
            "id": f"answer-{kind}",
            "evidence": _evidence() if behavior.evidence else None,
            "latitude": lat,
            "longitude": lon,
            "frame": behavior.frame,
            "radius": radius,
            "radius_level": None if radius is None else 0.95,
            "radius_source": None if radius is None else "labels",
            "query": kind,
            "kappa": kappa if behavior.kappa else None,
            "uncertainty": uncertainty,
            "probability": probability if behavior.calibrated else None,
            "inside": (0.12 if kind == "elsewhere" else 0.98) if behavior.calibrated else None,
            "decision": first if behavior.calibrated else None,
            "in_map": (kind != "elsewhere") if behavior.calibrated else None,
            "pose": pose,
            "matches": matches,
            "signals": {"margin": margin, "aliasing": -0.2, "z-score": -2.1 if kind == "elsewhere" else -6.3},
            "notes": ["Calibrated on 400 labelled queries."] if behavior.calibrated else ["Not calibrated."],
            "seconds": {"embed": 0.031, "search": 0.002, "signals": 0.004, "decide": 0.001},
            "calibration": "fake" if behavior.calibrated else "",
            "sentence": f"Best match {matches[0]['name']}.",
        }


def _ordered(references: list[dict[str, Any]], values: dict[str, str]) -> list[dict[str, Any]]:
    by, limit = values.get("order", "map"), int(values["limit"])
    if by == "map":
        return references[:limit]
    sign = 1 if by == "kappa" else -1
    return sorted(references, key=lambda r: sign * r[by])[:limit]


def _evidence() -> list[list[float]]:
    """Matched patches that are made up: the same places of both pictures, slightly moved."""
    rng = np.random.default_rng(1)
    points = rng.uniform(0.1, 0.9, (14, 2))
    moved = np.clip(points + rng.normal(0, 0.02, (14, 2)), 0, 1)
    return np.column_stack([points, moved, rng.random(14)]).tolist()


def openapi() -> dict[str, Any]:
    """The description of the real service, whose maps are never opened for it."""
    from kappaplace.maps import PlaceMap
    from kappaplace.serve.app import create_app

    place_map = Mock(spec=PlaceMap, folder=Path("town.map"))
    return create_app({"town": place_map}).openapi()


def _name(position: np.ndarray) -> str:
    return f"streets/{position[0]:.0f}_{position[1]:.0f}.jpg"


def calibration(calibrated: bool) -> dict[str, Any]:
    """Curves of the usual shape."""
    if not calibrated:
        return {"calibrated": False, "borrowed": False, "promise": [], "notes": [], "max_risk": None}
    stated = np.linspace(0.05, 0.95, 10)
    seen = np.clip(stated + 0.05 * np.sin(5 * stated), 0, 1)
    counts = (40 + 500 * np.abs(stated - 0.35) ** 2).round()
    coverage = np.linspace(0.02, 1, 50)
    risk = 0.002 + 0.27 * coverage**3
    return {
        "calibrated": True,
        "borrowed": False,
        "guaranteed": True,
        "origin": "400 labelled queries",
        "notes": [],
        "max_risk": 0.05,
        "reliability": [
            {"probability": float(p), "observed": float(o), "count": int(n)}
            for p, o, n in zip(stated, seen, counts, strict=True)
        ],
        "risk_coverage": [
            {"coverage": float(c), "risk": float(r), "uncertainty": float(c), "probability": 1 - float(r)}
            for c, r in zip(coverage, risk, strict=True)
        ],
        "promise": [
            "Accepted answers are incorrect in at most 5% of the cases, with 95% confidence; about 54% of "
            "the queries are accepted.",
            "Holds for queries drawn like the labelled ones, independent of each other.",
        ],
    }


def drift(drifting: bool) -> dict[str, Any]:
    """Three windows of queries; the last one differs if it should."""
    calibrated = {"uncertainty": [0.04, 0.21, 0.66], "kappa": [110.0, 270.0, 410.0]}
    windows = []
    for number in (1, 2, 3):
        change = 0.55 if drifting and number == 3 else 1 + 0.03 * number
        quantiles = {"uncertainty": [0.05, 0.2, 0.6], "kappa": [change * v for v in calibrated["kappa"]]}
        words = "kappa has become lower: 31.0% of the last 200 queries are below the calibrated range."
        warning = {"signal": "kappa", "test": "range", "direction": "lower", "statistic": 0.31, "limit": 0.05}
        warnings = [{**warning, "sentence": words}] if drifting and number == 3 else []
        windows.append({"queries": 200 * number, "time": None, "quantiles": quantiles, "warnings": warnings})
    counts = {"window": 200, "queries": 637, "waiting": 37}
    state = {"map": "town", "available": True, "drifting": drifting}
    return {**state, **counts, "calibrated": calibrated, "windows": windows}


def risk_of(max_risk: float) -> dict[str, Any]:
    """A threshold on the uncertainty that grows with the risk; nothing is accepted below one per cent."""
    accepts = max_risk >= 0.01
    return {
        "max_risk": max_risk,
        "guaranteed": max_risk == 0.05,
        "on": "uncertainty",
        "threshold": 1.6 * max_risk + 0.02 if accepts else "-inf",
        "reject_at": max(0.7, 1.6 * max_risk + 0.03),
        "reject_risk": 0.2,
        "coverage": min(1.0, (max_risk / 0.27) ** (1 / 3)) if accepts else 0.0,
        "risk": max_risk,
    }


def _jpeg(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=88)
    return out.getvalue()


class FakeApi:
    """Runs on loopback until closed; ``behaviour`` may be changed at any time."""

    def __init__(self, town: Town | None = None) -> None:
        self.town = town or Town()
        self.behavior = Behavior()
        self._pictures: dict[str, bytes] = {}
        self._lock = threading.Lock()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.get(self)

            def do_POST(self) -> None:
                api.post(self)

            def log_message(self, *words: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *whom: Any) -> None:
                if not isinstance(sys.exc_info()[1], ConnectionError):  # a page that was left hears no more
                    super().handle_error(*whom)

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        parts = url.path.strip("/").split("/")
        self.behavior.asked.append(handler.path)
        if url.path in ("/", "/docs") or parts[0] == "static":
            name = {"/": "index.html", "/docs": "docs.html"}.get(url.path, parts[-1])
            file = PAGE / name
            if not file.is_file():
                return _send(handler, 404, b"", "text/plain")
            return _send(handler, 200, file.read_bytes(), KINDS[file.suffix])
        if url.path == "/openapi.json":
            return _json(handler, openapi())
        if self._refused(handler):
            return None
        values = {key: found[0] for key, found in parse_qs(url.query).items()}
        return self._answer(handler, parts, values)

    def _answer(self, handler: BaseHTTPRequestHandler, parts: list[str], values: dict[str, str]) -> None:
        town, behave = self.town, self.behavior
        references = town.references if behave.references else []
        if behave.name:
            references = [{**r, "name": behave.name} for r in references]
        if not behave.kappa:
            references = [{**r, "kappa": None} for r in references]
        if not behave.posed:
            references = [{**r, "x": None, "y": None} for r in references]
        match parts:
            case ["v1", "maps"]:
                tiles = f"{self.address}/static/{{z}}/{{x}}/{{y}}.png" if behave.tiles else None
                served = {"maps": behave.maps, "default": behave.maps[0]}
                served |= {"tile_url": tiles, "tile_attribution": behave.attribution or None}
                _json(handler, {**served, "labels": behave.labels})
            case ["v1", "map"]:
                info = {
                    "name": values.get("map", "town"),
                    "version": 1,
                    "references": len(references),
                    "radius": RADIUS,
                    "frame": behave.frame,
                }
                _json(handler, info)
            case ["v1", "map", "references"]:
                _json(handler, {"total": len(references), "references": _ordered(references, values)})
            case ["v1", "map", "calibration"]:
                _json(handler, calibration(behave.calibrated))
            case ["v1", "map", "risk"]:
                _json(handler, risk_of(float(values["max_risk"])))
            case ["v1", "map", "drift"]:
                _json(handler, drift(behave.drifting))
            case ["v1", "labels"]:
                _json(handler, {"map": "town", "stored": len(behave.labeled), "counts": behave.counts()})
            case ["v1", "references", number]:
                _json(handler, references[int(number)])
            case ["v1", "references", number, "thumbnail"]:
                self._picture(handler, number)
            case ["v1", "demo", "queries"]:
                address = "/v1/demo/queries/{}/image"
                offered = [{"index": i, "name": n, "image": address.format(i)} for i, n in enumerate(DEMOS)]
                _json(handler, {"queries": offered if references else []})
            case ["v1", "demo", "queries", number, "image"]:
                self._picture(handler, f"demo {number}")
            case _:
                _json(handler, {"error": "There is nothing here."}, 404)

    def _picture(self, handler: BaseHTTPRequestHandler, name: str) -> None:
        with self._lock:  # the city paints itself once
            if name not in self._pictures:
                demo, _, number = name.rpartition(" ")
                made = (
                    self.town.query(int(number))
                    if demo
                    else _jpeg(self.town.picture(self.town.rows[int(name)]))
                )
                self._pictures[name] = made
        _send(handler, 200, self._pictures[name], "image/jpeg")

    def post(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        behave = self.behavior
        behave.asked.append(handler.path)
        behave.sent.append(body)
        if self._refused(handler):
            return
        time.sleep(behave.delay)
        if behave.busy:
            behave.busy -= 1
            _send(handler, 429, b'{"error": "busy"}', "application/json", {"Retry-After": "0.3"})
        elif behave.error:
            _json(handler, {"error": behave.error[1], "detail": behave.error[1]}, behave.error[0])
        elif handler.path.startswith("/v1/labels"):
            behave.labeled.append(json.loads(body))
            _json(handler, {"map": "town", "stored": 1, "counts": behave.counts()}, 201)
        else:
            self._localized(handler, body)

    def _localized(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        """The name of each file says which answer is wanted."""
        names = [name.decode() for name in re.findall(rb'filename="([^"]*)"', body)]
        found, problems = [], []
        for i, name in enumerate(names):
            demo = next((at for at, kind in enumerate(DEMOS) if name.startswith(kind)), 0)
            broken = name.startswith("broken")
            found.append(None if broken else self.town.answer(demo, 8, self.behavior))
            if broken:
                problems.append(
                    {"index": i, "status": 422, "code": "invalid_image", "detail": "Not an image."}
                )
        if handler.path.endswith("/batch"):
            _json(handler, {"answers": found, "errors": problems})
        elif problems:
            _json(handler, problems[0], 422)
        else:
            _json(handler, found[0])

    def _refused(self, handler: BaseHTTPRequestHandler) -> bool:
        token = self.behavior.token
        if token and handler.headers.get("Authorization") != f"Bearer {token}":
            _json(handler, {"error": "A token is needed."}, 401)
            return True
        return False


def _json(handler: BaseHTTPRequestHandler, value: Any, status: int = 200) -> None:
    _send(handler, status, json.dumps(value).encode(), "application/json")


def _send(
    handler: BaseHTTPRequestHandler,
    status: int,
    body: bytes,
    kind: str,
    headers: dict[str, str] | None = None,
) -> None:
    handler.send_response(status)
    sent = {"Content-Type": kind, "Content-Length": str(len(body)), "Content-Security-Policy": CSP}
    for name, value in {**sent, "X-Content-Type-Options": "nosniff", **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


if __name__ == "__main__":
    print(FakeApi().address, flush=True)
    threading.Event().wait()

"""What requests and answers look like, for the OpenAPI document; a test holds the answer to its schema."""

from __future__ import annotations

from typing import Any

# The smallest JPEG there is would do; this is its beginning, and people send their own anyway.
IMAGE = "/9j/4AAQSkZJRgABAQAAAQABAAD…"

BODIES: dict[str, dict[str, Any]] = {
    "LocalizeBody": {"image": IMAGE, "k": 5, "area": [550700.0, 4180050.0, 100.0], "max_risk": 0.05},
    "BatchBody": {"images": [IMAGE, IMAGE], "k": 5},
    "EmbedBody": {"images": [IMAGE]},
    "ReferenceBody": {"image": IMAGE, "x": 550690.0, "y": 4180005.0, "heading": 90.0},
}

ANSWER: dict[str, Any] = {
    "map": "town",
    "version": 7,
    "query": "query",
    "sentence": "Best match 0031.jpg at (550690.0, 4180005.0) ± 4.1 m, right with probability 0.97: accept.",
    "kappa": 184.2,
    "uncertainty": 0.031,
    "probability": 0.97,
    "inside": 0.99,
    "decision": "accept",
    "in_map": True,
    "max_risk": 0.05,
    "guaranteed": True,
    "pose": {"x": 550690.0, "y": 4180005.0, "heading": 91.5, "spread": 4.1, "matches": 3},
    "matches": [
        {
            "rank": 1,
            "name": "0031.jpg",
            "x": 550692.0,
            "y": 4180004.0,
            "heading": 90.0,
            "time": 1714000000.0,
            "similarity": 0.871,
            "kappa": 201.7,
            "uncertainty": 0.0052,
            "probability": 0.97,
            "decision": "accept",
            "reference": 31,
            "thumbnail": "/v1/references/31/thumbnail?map=town",
        }
    ],
    "signals": {"cosine": 0.129, "margin": -0.21, "aliasing": -0.18, "z-score": -6.4},
    "notes": [],
    "seconds": {"embed": 0.012, "search": 0.001, "signals": 0.001, "decide": 0.0004, "answer": 0.0003},
    "calibration": "5d2c0a9b1f7e4c33",
}

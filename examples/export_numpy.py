"""Where was this image taken? With NumPy, Pillow and ONNX Runtime alone: no torch, no kappaplace.

    kappaplace export runs/pt/model --calibration town.map --out place.onnx
    kappaplace map export town.map --out town.npz
    python export_numpy.py place.onnx town.npz query.jpg

Everything that must be known of the model lies in the file: how images are prepared, and what makes a
probability of a match. `kappaplace localize` does more (margin, aliasing, decisions with a proven risk).
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import onnxruntime as ort
from PIL import Image, ImageOps

RESAMPLING = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "nearest": Image.Resampling.NEAREST,
}


def prepare(path: str, how: dict[str, Any]) -> np.ndarray:
    """An image file as the model takes it, 1×3×H×W."""
    if how["mode"] != "exact":
        sys.exit(f"This example resizes to an exact size; the model asks for '{how['mode']}'.")
    height, width = how["size"] if isinstance(how["size"], list) else (how["size"], how["size"])
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    image = image.resize((width, height), RESAMPLING[how["interpolation"]])
    pixels = np.asarray(image, np.float32) / 255
    pixels = (pixels - np.float32(how["mean"])) / np.float32(how["std"])
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def calibrated(u: Any, how: dict[str, Any]) -> Any:
    """From an uncertainty to a probability, by the calibrator's name; see docs/calibration.md."""
    if how["name"] == "isotonic":
        return np.interp(u, how["knots"], how["levels"])
    if how["name"] == "logistic":
        return sigmoid(how["bias"] - how["slope"] * (u - how["centre"]) / how["scale"])
    if how["name"] == "logit-temperature":
        return sigmoid(-how["sharpness"] * u)
    u = np.clip(u, 1e-9, 1 - 1e-9)
    if how["name"] == "temperature":
        return sigmoid(how["sharpness"] * np.log((1 - u) / u))
    return sigmoid(how["c"] + how["a"] * np.log1p(-u) - how["b"] * np.log(u))


def shifted(p: Any, fitted: float, stated: float) -> Any:
    """The same probability where its class has another share, by Bayes' rule."""
    up, down = p * stated / fitted, (1 - p) * (1 - stated) / (1 - fitted)
    return up / (up + down)


def pair_probability(calibration: dict[str, Any] | None, scores: dict[str, Any]) -> Any:
    """That each match is right; None where the calibration asks for a score that is not computed here."""
    pair, right = (calibration or {}).get("pair"), (calibration or {}).get("pair_right")
    if calibration is None or pair is None or not set(pair["scores"]) <= set(scores):
        return None
    columns = np.stack([scores[name] for name in pair["scores"]], axis=-1)
    uncertainty = columns[..., 0]
    if (how := pair["combination"]) is not None:
        x = np.clip((columns - how["centre"]) / how["scale"], -5, 5)
        total = x @ np.array(how["weights"])
        for j, knots in enumerate(how.get("knots", ())):  # lines that bend, where it was fitted so
            total += np.maximum(x[..., j, None] - knots, 0) @ np.array(how["bends"][j])
        uncertainty = 1 - sigmoid(how["bias"] - total)
    rate, p = calibration["outside_rate"], calibrated(uncertainty, right["right"])
    if right["inside"] is not None:
        inside = calibrated(uncertainty, right["inside"])
        return p * (inside if rate is None else shifted(inside, 1 - right["fitted_rate"], 1 - rate))
    if rate is None:
        return p
    return shifted(p, right["right_rate"] * (1 - right["fitted_rate"]), right["right_rate"] * (1 - rate))


def main(model: str, town: str, query: str, k: int = 5) -> None:
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    record = json.loads(session.get_modelmeta().custom_metadata_map["kappaplace"])
    image = prepare(query, record["preprocessing"])
    (descriptor,), (kappa,) = session.run(["descriptor", "kappa"], {"images": image})
    places = np.load(town)
    cosine = places["descriptors"].astype(np.float32) @ descriptor
    best = np.argsort(-cosine)[:k]
    theirs, cosine = places["kappa"][best], cosine[best].astype(np.float64)
    resultant = np.sqrt(kappa**2 + theirs**2 + 2 * kappa * theirs * np.clip(cosine, -1, 1))
    found = pair_probability(record["calibration"], {"cosine": 1 - cosine, "kappaplace": 1 / resultant})
    print(f"κ {kappa:.1f}")
    for i, row in enumerate(best):
        probability = "not calibrated for these scores" if found is None else f"probability {found[i]:.3f}"
        position = f"({places['x'][row]:.1f}, {places['y'][row]:.1f})"
        print(f"{places['name'][row]} at {position}: cosine {cosine[i]:.4f}, {probability}")


if __name__ == "__main__":
    main(*sys.argv[1:4])

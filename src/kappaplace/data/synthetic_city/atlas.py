"""Many textures in one flat array, at several sizes: one gather per pixel fetches the right detail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEVELS = 5  # each half as fine as the one before


@dataclass(frozen=True)
class Atlas:
    """`levels[l]` holds all textures of level l end to end as packed uint32 texels, `up` fastest."""

    levels: tuple[np.ndarray, ...]
    offsets: np.ndarray  # LEVELS × textures: where each texture starts
    widths: np.ndarray  # texels of level 0, per texture
    height: int  # texels of level 0, the same for all


def pack(texture: np.ndarray) -> np.ndarray:
    """uint8 (…, 4) → uint32 (…)."""
    return np.ascontiguousarray(texture).view(np.uint32)[..., 0]


def unpack(texels: np.ndarray) -> np.ndarray:
    """uint32 (…) → uint8 (…, 4)."""
    return np.ascontiguousarray(texels)[..., None].view(np.uint8)


def _halve(texture: np.ndarray) -> np.ndarray:
    """Average 2 × 2 texels; empty ones (material 0) lend no colour, and win only where they are the most."""
    quarters = [texture[i::2, j::2] for i in (0, 1) for j in (0, 1)]
    solid = [quarter[..., 3] > 0 for quarter in quarters]
    count = np.add.reduce(solid, dtype=np.uint16)
    # Empty texels are black already, so that a plain sum leaves them out.
    total = np.add.reduce([quarter[..., :3] for quarter in quarters], dtype=np.uint16)
    colour = (total + count[..., None] // 2) // np.maximum(count, 1)[..., None]
    material = np.zeros(count.shape, np.uint8)
    for quarter, mask in zip(quarters, solid, strict=True):
        material = np.where(mask & (material == 0), quarter[..., 3], material)
    material[count < 2] = 0
    colour[count < 2] = 0
    return np.concatenate([colour, material[..., None]], axis=2).astype(np.uint8)


def build_atlas(textures: list[np.ndarray]) -> Atlas:
    """Textures: uint8 (width, height, 4), all of one height; sides divisible by 2^(LEVELS-1)."""
    levels = []
    offsets = []
    current = textures
    for number in range(LEVELS):
        current = [_halve(texture) for texture in current] if number else textures
        sizes = [texture.shape[0] * texture.shape[1] for texture in current]
        offsets.append(np.concatenate([[0], np.cumsum(sizes)[:-1]]))
        levels.append(np.concatenate([pack(texture).ravel() for texture in current]))
    widths = np.array([len(texture) for texture in textures], np.int32)
    return Atlas(tuple(levels), np.array(offsets, np.int32), widths, textures[0].shape[1])


def column_starts(atlas: Atlas, texture: np.ndarray, share: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Index of the lowest texel of one column per entry: `share` in [0, 1) along the texture, at `level`."""
    width = atlas.widths[texture] >> level
    column = np.clip((share * width).astype(np.int32), 0, width - 1)
    return np.asarray(atlas.offsets[level, texture] + column * (atlas.height >> level))


def sample(atlas: Atlas, starts: np.ndarray, level: np.ndarray, height: np.ndarray) -> np.ndarray:
    """Packed texels, columns × rows; `height` (C × H) counts texels of level 0, clipped to the texture."""
    out = np.empty(height.shape, np.uint32)
    for number in range(LEVELS):
        chosen = np.flatnonzero(level == number)
        if not len(chosen):
            continue
        rows = np.clip(height[chosen], 0, atlas.height - 1) * np.float32(0.5**number)
        index = rows.astype(np.int32)
        index += starts[chosen, None]
        out[chosen] = atlas.levels[number][index]
    return out

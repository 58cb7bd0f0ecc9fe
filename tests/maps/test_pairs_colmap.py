"""Pair lists for COLMAP: look-alike pairs of a synthetic city are removed, right ones are kept.

COLMAP itself verifies most of the wrong pairs of twin streets: their walls are copies of each other.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace.cli.main import app
from kappaplace.maps import read_pairs
from kappaplace.models import load_model
from kappaplace_city import SyntheticCity
from kappaplace_city.views import mild
from kappaplace_city.world import ALIASED, NORTH, Segment
from typer.testing import CliRunner

pycolmap = pytest.importorskip("pycolmap")

"""From a score to something one can act on: probability, accept / doubtful / reject, and a watch on drift.

NumPy in, NumPy out; nothing here knows of images, maps or disks. See docs/calibration.md.
"""

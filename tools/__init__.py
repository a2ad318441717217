"""Programs for those who develop Penstock."""

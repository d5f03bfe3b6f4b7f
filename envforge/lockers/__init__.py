"""Lockers: run the real solvers (uv, rattler) for the target of a resolution and return parts of a lock."""

"""envforge: reproducible deep-learning environments, judged before the build and tested inside the image."""

__version__ = "0.1.0"

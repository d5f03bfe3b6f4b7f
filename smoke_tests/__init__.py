"""The smoke ladder that runs inside an image or any interpreter: standard library, NumPy and the framework only.

Loaded under the name ``envforge_smoke`` by run.py, so that nothing here can hide a framework's own module.
Readable by Python 3.7.
"""

"""``python run.py --probe``: which known frameworks this interpreter holds, without importing them."""

import importlib.util
import json
import os
import sys

from envforge_smoke import structure


def main():
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "checks.json")) as stream:
        known = json.load(stream)["frameworks"]
    installed = structure.installed()
    found = []
    for name in sorted(known):
        try:
            present = importlib.util.find_spec(known[name]["module"]) is not None
        except (ImportError, ValueError):
            present = False
        if present:
            distribution = next((d for d in known[name]["distributions"] if d in installed), None)
            found.append({"name": name, "distribution": distribution, "version": installed.get(distribution)})
    answer = {"python": sys.version.split()[0], "frameworks": found, "packages": installed}
    sys.stdout.write("\n@envforge " + json.dumps(answer) + "\n")
    return 0

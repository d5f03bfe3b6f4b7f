"""Entry: ``python run.py PLAN.json`` runs the ladder; one line per check on stdout, each starting with the marker.

Lines that do not start with the marker are noise of the environment and mean nothing. The exit code is 0 when
every planned check was reported, whatever its outcome, and 3 when the ladder itself broke.
"""

import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = "envforge_smoke"


def load_package():
    """Import this folder as ``envforge_smoke`` and take it off the module path."""
    if PACKAGE not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            PACKAGE, os.path.join(HERE, "__init__.py"), submodule_search_locations=[HERE]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[PACKAGE] = module
        spec.loader.exec_module(module)
    here = os.path.realpath(HERE)
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != here]


def main(argv):
    load_package()
    if argv and argv[0] == "--role":
        from envforge_smoke import worker

        return worker.main(argv[1:])
    if argv and argv[0] == "--probe":
        from envforge_smoke import probe

        return probe.main()
    if len(argv) != 1:
        sys.stderr.write("usage: python run.py PLAN.json\n")
        return 2
    from envforge_smoke import parent

    return parent.main(argv[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

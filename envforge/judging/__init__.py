"""The parts of a verdict, each a pure function over a request, the tables and a list of findings."""

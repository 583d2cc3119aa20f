"""Several router processes on one port: `--processes N` with N > 1.

supervisor   starts them, starts them again, owns the roster of workers; serves no client
member       one of them: everything that a router on its own has, beside its siblings
gateway      the HTTP front of a member: what tells of the fleet or changes it does so for all
merging      what all of them say, as one answer                             no I/O
commons      where they find each other
questions    how they ask each other
address      one port for all of them
"""

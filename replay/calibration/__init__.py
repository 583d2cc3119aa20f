"""How long a running worker takes for what: measured through its API, fitted to a timing for simulated workers.

`engine` asks it, `measure` chooses what to ask, `fit` makes a profile of the answers' times.
"""

"""Placement: pure functions from a request and its candidate workers to one cost for each. Lowest cost wins.

A policy keeps no state, does no I/O, logs nothing and draws no randomness; `choice.choose` breaks ties for all of them.
"""

"""A fleet in virtual time: our own router core, policies, scheduler and block manager, driven by a trace.

`simulation.simulate` runs a policy over a trace, `central.simulate_central` a queue that no policy can beat, and
`report` says what came of it.
"""

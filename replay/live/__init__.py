"""A trace over HTTP: the same requests as the simulator's, sent in real time to any OpenAI-compatible endpoint.

`replay.replay_live` sends a trace and says what came of it; `report` has the numbers.
"""

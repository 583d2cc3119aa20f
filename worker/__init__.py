"""The engine process: prefix cache, scheduler and model runner below, an OpenAI-style server on top.

Nothing here knows of routers: a worker publishes what its cache holds and serves whoever asks.
"""

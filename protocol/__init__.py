"""The HTTP wire of clients, router and engines: OpenAI-style requests, errors, SSE framing, prompts as token ids.

A leaf: it imports no other room, opens no socket and reads no clock.
"""

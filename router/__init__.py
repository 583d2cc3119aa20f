"""The gateway process: a core that decides and does no I/O, and shells that do what it decided.

Core: `core` (the state machine), `fleet` (workers and their slots), `index` (who has which prefix, with `orphans` and
`leases`), `load` (what waits where), `request_view` (what policies see of a request).
Shells: `gateway` (HTTP front), `relay` (upstream), `worker_link` (health, `discovery`, events),
`prompt_reader` (tokens; `text_encoder` where there are none), `metrics`, `collector` (short pauses), `app`.
`processes`: several of all this on one port.
"""

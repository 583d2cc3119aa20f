"""The KV-event wire: what engines say of their prefix caches, read, hashed, ordered, published and followed."""

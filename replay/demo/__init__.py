"""`warmroute demo`: the same conversations over two real engines, placed by round robin and by expected work."""

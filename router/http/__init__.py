"""HTTP/1.1 by bytes: what a relay needs of it, and nothing else.

heads      the values, and how they are written     no I/O
readers    bytes to requests and answers            no I/O, by llhttp
answers    what a handler answers with, and how
server     the front's connections
upstream   the workers' connections, pooled
"""

"""Request traces: readers for the field's formats, one common value, generators, and what endless caches would reach.

`reader.read_trace` turns any file into a `trace.Trace`; everything else in `replay` knows only that.
"""

"""A comparison as one self-contained page: modules compute what is drawn, `templates/` has markup and style.

Positions along a chart's width are per cent of it, so that a plot fits any screen; text is HTML beside the drawing and
keeps its size. Nothing is loaded and nothing runs: no script, no font, no picture from elsewhere.
"""

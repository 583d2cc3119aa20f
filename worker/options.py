"""Options that other commands share with `warmroute worker`, free of what it takes to serve."""

from typing import Any

import click

from worker.timing import Timing, make_timing


class TimingType(click.ParamType[Timing]):
    name = "timing"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Timing:
        try:
            return make_timing(value) if isinstance(value, str) else value
        except (ValueError, OSError) as error:
            self.fail(str(error), param, ctx)

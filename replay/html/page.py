"""The page itself: what is computed goes into the template."""

from jinja2 import Environment, PackageLoader, StrictUndefined

from replay.html.bars import hit_ratios, regrets
from replay.html.curves import ttft_distribution
from replay.html.heat import load_maps
from replay.html.ranking import ranked
from replay.html.table import cache_table, times_table
from replay.html.words import facts, latency, reasons
from replay.simulator.comparison import Comparison


def as_html(comparison: Comparison, trace_name: str) -> str:
    """One page that needs nothing but itself. Policies stand in the order of their mean TTFT."""
    ranks, bounds = ranked(comparison.policies), comparison.bounds
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            trace_name=trace_name,
            facts=facts(comparison),
            latency=list(latency(ranks)),
            reasons=list(reasons(comparison, ranks[0])),
            hits=bounds and hit_ratios(ranks, bounds),
            distribution=ttft_distribution(ranks),
            load=load_maps(ranks),
            regrets=list(regrets(ranks, bounds)),
            tables=[cache_table(ranks, has_prefixes=bounds is not None), times_table(ranks)],
        )
    )


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("replay.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

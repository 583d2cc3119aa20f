"""A fitted profile, and how well it fits, for people."""

from dataclasses import asdict
from statistics import fmean

from rich.console import Group, RenderableType

from replay.calibration.calibrate import Calibration
from replay.table import plain_table


def as_table(calibration: Calibration) -> RenderableType:
    points = plain_table("Measured, and as the profile has it", "", "sequences", "tokens", "ms", "fitted ms", "off %")
    for each in calibration.fitted:
        points.add_row(
            each.what,
            f"{each.sequences}",
            f"{each.tokens:,.0f}",
            f"{each.measured_ms:,.2f}",
            f"{each.fitted_ms:,.2f}",
            f"{each.error:+.1%}"[:-1],
        )
    coefficients = plain_table("", "profile", "ms")
    for name, value_ms in asdict(calibration.profile).items():
        coefficients.add_row(name, f"{value_ms:.6g}")
    errors = [abs(each.error) for each in calibration.fitted]
    return Group(
        points, coefficients, f"The profile is off by {fmean(errors):.1%} in the mean, {max(errors):.1%} at most."
    )

"""Numbers as people read them. Units stand behind a space that does not break."""

SPACE = "\u00a0"
MINUS = "\u2212"


def percent(share: float) -> str:
    return f"{100 * share:.1f}{SPACE}%"


def points(share: float) -> str:
    """A difference of two shares, in points of a hundred, with its sign."""
    return signed(100 * share, digits=1)


def signed(value: float, digits: int) -> str:
    text = f"{abs(value):,.{digits}f}"
    if not float(text.replace(",", "")):
        return text
    return (MINUS if value < 0 else "+") + text


def duration(ms: float) -> str:
    """Three digits, in the unit that suits."""
    seconds = ms / 1e3
    if ms < 999.5:
        return f"{ms:.3g}{SPACE}ms"
    if seconds < 99.95:
        return f"{seconds:.3g}{SPACE}s"
    if seconds < 99.95 * 60:
        return f"{seconds / 60:.3g}{SPACE}min"
    return f"{seconds / 3600:,.1f}{SPACE}h"


def count(number: int, noun: str) -> str:
    return f"{number:,}{SPACE}{noun}{'' if number == 1 else 's'}"

"""How a replay that talks to servers can end, for commands that know nothing of servers until one is asked for."""

import signal


class UnusableEndpoint(Exception):
    """Nothing can be measured there. The message says where, and why."""


class RequestFailed(Exception):
    """No complete answer came. The message says what came instead; `status` is that of a refusal."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class CalibrationFailed(Exception):
    """The worker's answers do not tell its times. The message says why."""


class Interrupted(Exception):
    """A signal asked for the end, and everything has been stopped."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum

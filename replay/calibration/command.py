"""`warmroute replay --calibrate URL`: from the command's options to a profile that is shown and written."""

from pathlib import Path

import uvloop

from replay.calibration.calibrate import Subject, calibrate
from replay.calibration.table import as_table
from replay.output import progress_bars, show
from replay.processes import interruptible


def run_calibration(
    url: str,
    *,
    model: str | None,
    vocabulary: range,
    longest_prompt: int,
    max_sequences: int,
    output_path: Path,
) -> None:
    """Raises UnusableEndpoint, RequestFailed, CalibrationFailed, Interrupted, and OSError."""
    subject = Subject(url, model, vocabulary, longest_prompt, max_sequences)
    with progress_bars() as progress:
        task = progress.add_task(url, total=None)
        calibration = uvloop.run(
            interruptible(
                calibrate(
                    subject,
                    on_planned=lambda requests: progress.update(task, total=requests),
                    on_answered=lambda answers: progress.advance(task, answers),
                )
            )
        )
    calibration.profile.write(output_path)
    show(as_table(calibration))

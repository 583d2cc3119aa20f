"""What the supervisor starts: `python -m router.processes DIRECTORY PROCESSES NUMBER`."""

import sys
from pathlib import Path

from router.processes.commons import Commons
from router.processes.member import serve

if __name__ == "__main__":
    serve(Commons(Path(sys.argv[1]), int(sys.argv[2])), int(sys.argv[3]))

"""Runs one compiler command and writes down what it cost.

Started by ninja in front of the compiler (or its cache), with a bare interpreter: standard library only. Appends
two JSON lines to `costs.jsonl` in the build folder: one when the command starts, one when it ends, with wall and
CPU seconds and the peak resident size of the largest process, in KiB (getrusage(2), RUSAGE_CHILDREN). Under sccache the
compiler is a child of sccache's server: only the wall time is known then, the others are null.
"""

import json
import os
import resource
import subprocess
import sys
import time

_ELSEWHERE = {"sccache"}
"""Programs that let another process compile: what they use themselves says nothing."""


def main(argv: list[str]) -> int:
    """Run `argv`, return its status as a shell would: 128 + the signal's number if a signal ended it."""
    target = argv[argv.index("-o") + 1] if "-o" in argv[:-1] else argv[-1]
    start = time.time()
    _note({"start": target, "at": round(start, 2), "pid": os.getpid()})
    try:
        status = subprocess.run(argv, check=False).returncode
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        status = 127
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    known = os.path.basename(argv[0]) not in _ELSEWHERE  # noqa: PTH119 -- pathlib takes longer to load than this runs
    _note(
        {
            "end": target,
            "wall": round(time.time() - start, 2),
            "cpu": round(used.ru_utime + used.ru_stime, 2) if known else None,
            "peak_kib": used.ru_maxrss if known else None,
            "status": status,
        }
    )
    return status if status >= 0 else 128 - status


def _note(record: dict[str, object]) -> None:
    # One write of less than a page: lines of commands that run at the same time do not mix (O_APPEND).
    line = json.dumps(record) + "\n"
    descriptor = os.open("costs.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

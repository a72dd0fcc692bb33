"""Run `sglang_lz.server.launch` with each of several lists of arguments, without serving.

A script: a JSON array of the lists comes on standard input. For each it writes a line, a JSON array
of the exit status and what the launch wrote on standard error. What takes seconds to import is
imported once, and each launch is a fork.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
import traceback


def launched(arguments: list[str]) -> tuple[int, str]:
    """The exit status of a launch, and what it wrote."""
    with tempfile.TemporaryFile("w+") as written:
        child = os.fork()
        if child == 0:
            os.dup2(written.fileno(), sys.stderr.fileno())
            sys.argv[1:] = arguments
            try:
                runpy.run_module("sglang_lz.server.launch", run_name="__main__")
            except SystemExit as end:
                os._exit(end.code if isinstance(end.code, int) else 1)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        written.seek(0)
        return os.waitstatus_to_exitcode(status), written.read()


if __name__ == "__main__":
    import sglang.launch_server
    import sglang.srt.server_args  # noqa: F401

    for one in json.load(sys.stdin):
        print(json.dumps(launched(one)), flush=True)

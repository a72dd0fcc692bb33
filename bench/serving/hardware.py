"""The hardware and software of the runs."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

from bench import common


@functools.cache
def torch_facts() -> dict[str, Any]:
    """The versions of torch and CUDA, and the GPUs: `torch`, `cuda`, `gpus`.

    Asked in another process, because torch keeps memory of the GPU while its process runs.
    """
    script = (
        "import json, torch; cuda = torch.cuda; "
        "gpus = [cuda.get_device_name(i) for i in range(cuda.device_count())]; "
        "print(json.dumps(dict(torch=torch.__version__, cuda=torch.version.cuda, gpus=gpus)))"
    )
    answer = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
    facts: dict[str, Any] = json.loads(answer.stdout)
    return facts


def environment() -> dict[str, Any]:
    """The machine and the versions."""
    return {
        **common.machine(),
        **torch_facts(),
        **common.versions("triton", "sglang"),
        "commit": common.commit(),
    }

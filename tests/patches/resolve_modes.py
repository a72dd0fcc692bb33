"""Run by test_refused_modes.py in a process of its own: real server arguments, then `admit`.

Prints one JSON line for each list of flags: [flags, what `admit` said of a penalty, or null].
Server arguments are published process-wide, so no other test may share this process.
"""

from __future__ import annotations

import json
import sys


def admitted(model_path: str, flags: list[str]) -> str | None:
    """Resolve and publish the arguments as a server does, then ask for a penalty.

    Returns:
        the refusal, which begins with "upstream: " if the server would not even start, or None if
        the request was admitted.
    """
    from sglang.benchmark import one_batch
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.server_args import prepare_server_args

    from sglang_lz.http.admission import admit

    args = prepare_server_args(["--model-path", model_path, "--device", "cpu", *flags])
    try:
        args.resolve_once()
    except ValueError as error:
        return f"upstream: {error}"
    world_rank = one_batch.spawn_world_rank(args, tp_rank=0, pp_rank=0)
    ranks = one_batch.SpawnRanks(world_rank=world_rank, gpu_id=0)
    one_batch.publish(args, role="scheduler", ranks=ranks)
    try:
        fields = {"lz_penalty": 0.15}
        admit(SamplingParams(), fields, is_encoder_decoder=False, has_input_embeds=False)
    except ValueError as error:
        return str(error)
    return None


if __name__ == "__main__":
    for given in json.loads(sys.argv[2]):
        print(json.dumps([given, admitted(sys.argv[1], given)]), flush=True)

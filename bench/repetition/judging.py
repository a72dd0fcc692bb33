"""Ask the judge of every sample of a run, resumably."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench.records import Lines, RecordError, read_lines
from bench.repetition.judge import connect, judge
from bench.repetition.run_directory import JUDGE, SAMPLES, key_of


def judge_all(directory: Path, base_url: str, model: str, concurrency: int) -> int:
    """Append the missing verdicts to judge.jsonl; return how many answers say neither yes nor no.

    Args:
        directory: a run directory.
        base_url: the judge's endpoint, the part before /chat/completions.
        model: its name there; the verdicts of one file are one model's.
        concurrency: requests at a time.

    Raises:
        OSError: there are no samples.
        RecordError: another process is writing verdicts, or those that are there are of another
            model.
        openai.OpenAIError: the endpoint refuses a request, or does not answer.
    """
    samples = read_lines(directory / SAMPLES)
    client = connect(base_url)

    def ask(sample: dict[str, Any]) -> dict[str, Any]:
        verdict, answer = judge(client, model, sample["text"])
        return {**key_of(sample)._asdict(), "model": model, "verdict": verdict, "answer": answer}

    with Lines(directory / JUDGE) as verdicts:
        for line in verdicts.before:
            if line["model"] != model:
                raise RecordError(
                    f"{directory / JUDGE} has verdicts of {line['model']}; remove it to ask "
                    f"{model} instead."
                )
        done = {key_of(line) for line in verdicts.before}
        undecided = sum(line["verdict"] is None for line in verdicts.before)
        missing = [sample for sample in samples if key_of(sample) not in done]
        pool = ThreadPoolExecutor(concurrency)
        try:
            asked = [pool.submit(ask, sample) for sample in missing]
            with tqdm(total=len(samples), initial=len(done), unit="verdict") as bar:
                for answered in as_completed(asked):
                    line = answered.result()
                    verdicts.add(line)
                    undecided += line["verdict"] is None
                    bar.update()
        finally:
            pool.shutdown(cancel_futures=True)
    return undecided

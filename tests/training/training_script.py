"""A run in a process of its own, to be killed, interrupted, or shared with another: FOLDER STEPS [DROPOUT]."""

import atexit
import sys
import time
from pathlib import Path

import torch
from training_parts import Objective, make_trainer, train_config

from homespun.errors import UserError
from homespun.models.bundle import weights_of
from homespun.training.config import Budget
from homespun.training.devices import DistributedContext


def say_threads() -> None:
    names = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
    print("threads", *names, flush=True)


def main() -> None:
    folder, steps, dropout, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    torch.set_num_threads(1)
    atexit.register(say_threads)  # called after what is registered later
    context = DistributedContext.join()
    config = train_config(budget=Budget(steps=steps), checkpoint_every=1e-9, validate_every=0.2)
    torch.manual_seed(5)
    trainer = make_trainer(
        folder, config, objective=Objective(dropout), resume=True, rank=context.rank, world_size=context.world_size
    )
    try:
        for step in trainer:
            print(step.number, flush=True)
            time.sleep(pause)
    except UserError as error:
        print(error, flush=True)
        sys.exit(2)
    norm = sum(float(tensor.double().norm()) for tensor in weights_of(trainer.objective).values())
    print(f"rank {context.rank} of {context.world_size} norm {norm:.9f}", flush=True)


if __name__ == "__main__":
    main()

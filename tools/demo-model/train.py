"""Training from data.npz to a checkpoint, in a few single-threaded processes on a CPU.

  python3 train.py --work work --minutes 20 --out checkpoint.pt

Processes instead of threads, because two threads of one process wait for each other in every operation: when
another program took a core, that was about 8 ms each time.
"""

import argparse
import os
import sys
from multiprocessing.context import SpawnContext
from pathlib import Path

import torch
import torch.multiprocessing

from data import WORK
from model import Model
from trainer import Shared, Trainer

# glibc keeps freed memory instead of returning it to the system: page faults took a third of a
# step.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "16000000000",
    "MALLOC_TOP_PAD_": "268435456",
}


def restart_with_allocator() -> None:
    """Starts this program again with the allocator's settings, which are read only when a process starts."""
    if not ALLOCATOR.keys() <= os.environ.keys():
        os.environ.update(ALLOCATOR)
        os.execv(sys.executable, [sys.executable, *sys.argv])


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line (`words`, or the program's own)."""
    parser = argparse.ArgumentParser(
        description="Trains the demo model.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add(
        "--work", type=Path, default=WORK, help="folder with tokenizer.json and data.npz, and for checkpoints"
    )
    add("--init", default="", help="checkpoint in the work folder to go on from (weights only)")
    add("--out", default="checkpoint.pt", help="checkpoint to write in the work folder")
    add("--minutes", type=float, default=38, help="length of the run; the schedule follows it")
    add("--steps", type=int, default=0, help="stop after this number of steps (0: by the clock alone)")
    add("--tokens", type=int, default=8192, help="tokens in a step, of all processes together")
    add("--processes", type=int, default=2, help="single-threaded training processes")
    add("--optimizer", choices=["adamw", "muon"], default="adamw", help="optimiser of the matrices")
    add("--lr", type=float, default=3e-3, help="AdamW's learning rate")
    add("--muon-lr", type=float, default=0.02, help="Muon's learning rate")
    add("--warmup", type=int, default=60, help="steps over which the learning rates rise")
    add("--drill", type=float, default=0.4, help="first part of the run that is mostly drills")
    add("--long", type=float, default=0.18, help="last part of the run that mixes in long documents")
    add("--mtp-weight", type=float, default=0.2, help="weight of the MTP layer's loss")
    add("--bias-speed", type=float, default=0.002, help="step of the experts' correction biases")
    add(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="fuse small operations (needs g++)",
    )
    add("--log-steps", type=int, default=20, help="steps from one line of the log to the next")
    add("--eval-steps", type=int, default=300, help="steps between exact-match checks (0: none)")
    return parser.parse_args(words)


def shared_memory(options: argparse.Namespace, context: SpawnContext) -> Shared:
    """The memory the processes meet in, sized for the model."""
    model = Model()
    params = sum(param.numel() for param in model.parameters())
    loads = sum(block.load.numel() for block in model.blocks() if block.has_experts)
    return Shared(
        gradients=torch.zeros(2, options.processes, params + loads).share_memory_(),
        updates=torch.zeros(params).share_memory_(),
        clock=torch.zeros(2).share_memory_(),
        barrier=context.Barrier(options.processes),
    )


def work(rank: int, options: argparse.Namespace, shared: Shared) -> None:
    """What a process does."""
    Trainer(rank, options, shared).run()


def main() -> None:
    """Starts the processes and waits for them."""
    options = arguments()
    # torch.multiprocessing passes tensors between processes without copies.
    context = torch.multiprocessing.get_context("spawn")
    shared = shared_memory(options, context)
    processes = [
        context.Process(target=work, args=(rank, options, shared)) for rank in range(options.processes)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit("a training process failed: see its message above")


if __name__ == "__main__":
    restart_with_allocator()
    main()

"""One of the processes that train: batches, gradients, the meeting of all processes, the step, the log.

Each process computes the gradients of its own batch; they meet in shared memory, and every process then takes
the same step. The schedule follows the first process's clock, so a run's length is given in minutes.
"""

import argparse
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

import corpus
import ops
from data import DataSet
from model import Model
from optimizers import Team, make_optimizers
from scoring import exact_matches, shares

SAVE_SECONDS = 180
MAX_GRADIENT_NORM = 1.0
DTYPE = torch.bfloat16


class Shared(NamedTuple):
    """Memory that all processes see. Gradients and clock exist twice and take turns: one barrier a step."""

    gradients: Tensor
    updates: Tensor
    clock: Tensor
    barrier: Barrier


class Record(NamedTuple):
    """What a step is remembered by until the next line of the log."""

    loss: float
    mtp_loss: float
    norm: float
    unusual: bool


def learning_rate_factor(step: int, progress: float, warmup: int) -> float:
    """A linear warm-up over `warmup` steps, times a cosine from 1 to 0.02 over the run."""
    return min(1, (step + 1) / warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


class Batches:
    """Endless batches of the three stages, and the rule which stage a step takes."""

    def __init__(self, work: Path, options: argparse.Namespace, rank: int) -> None:
        arrays = dict(np.load(work / "data.npz"))
        self.rng = np.random.default_rng(rank)
        self.tokens = options.tokens // options.processes
        self.rank, self.drill_part, self.long_part = rank, options.drill, options.long
        self.streams = {name: self.stream(DataSet(arrays, name)) for name in ("drills", "mix", "long")}

    def stream(self, data: DataSet) -> Iterator[tuple[Tensor, Tensor]]:
        """Pass after pass over a data set."""
        while True:
            yield from data.batches(self.rng, self.tokens)

    def stage(self, step: int, progress: float) -> str:
        """The first part of a run is mostly drills; in the last, half of the batches are long documents."""
        if progress > 1 - self.long_part and (step + self.rank) % 2 == 0:
            return "long"
        return "drills" if progress < self.drill_part and (step + self.rank) % 4 != 0 else "mix"

    def next(self, stage: str) -> tuple[Tensor, Tensor]:
        """The next batch of a stage: ids and loss weights."""
        return next(self.streams[stage])


class Trainer:
    """One of the processes."""

    def __init__(self, rank: int, options: argparse.Namespace, shared: Shared) -> None:
        torch.manual_seed(1)
        torch.set_num_threads(1)
        self.rank, self.options, self.shared = rank, options, shared
        self.tokenizer = Tokenizer.from_file(str(options.work / "tokenizer.json"))
        self.batches = Batches(options.work, options, rank)
        self.model = Model()
        if options.init:
            self.model.load_state_dict(torch.load(options.work / options.init))
        self.params = list(self.model.parameters())
        self.expert_blocks = [block for block in self.model.blocks() if block.has_experts]
        team = Team(rank, options.processes, shared.updates, shared.barrier)
        self.optimizers = make_optimizers(self.model, options.optimizer, options.lr, options.muon_lr, team)
        self.rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]
        items = corpus.evaluation_set(corpus.DEVELOPMENT_SEED)
        self.development = [item for item in items if item.get("n_facts", 0) <= 60][::4]
        self.records: list[Record] = []
        self.log("parameters", sum(param.numel() for param in self.params))

    def log(self, *words: object) -> None:
        """Prints, from the first process only."""
        if self.rank == 0:
            print(*words, flush=True)

    def backward(self, stage: str) -> tuple[Tensor, Tensor, int]:
        """Gradients of a batch; its loss, its MTP loss, and its tokens, padding included."""
        ids, weights = self.batches.next(stage)
        loss, mtp_loss = self.model.loss(ids, weights, DTYPE)
        (loss + self.options.mtp_weight * mtp_loss).backward()
        return loss.detach(), mtp_loss.detach(), ids.numel()

    def compile(self) -> None:
        """Compiles on three batches, process after process: the others find the first one's work cached."""
        start = time.time()
        ops.compile_all()
        for turn in range(self.options.processes):
            if turn == self.rank:
                for stage in ("mix", "mix", "long"):
                    self.backward(stage)
                self.model.zero_grad(set_to_none=True)
            self.shared.barrier.wait()
        for block in self.expert_blocks:
            block.load.zero_()
        self.log(f"compiled, {time.time() - start:.0f}s")

    def meet(self, step: int, progress: float) -> tuple[float, float, Tensor]:
        """Averages the gradients of all processes, clipped. Returns the first process's progress, the norm
        before clipping, and how many tokens each expert of each block got (blocks, experts)."""
        gradients, clock = self.shared.gradients[step % 2], self.shared.clock[step % 2 : step % 2 + 1]
        parts = [param.grad.reshape(-1) for param in self.params] + [
            block.load for block in self.expert_blocks
        ]
        torch.cat(parts, out=gradients[self.rank])
        if self.rank == 0:
            clock[0] = progress
        self.shared.barrier.wait()
        total = gradients.sum(0)
        sizes = [param.numel() for param in self.params]
        flat, loads = total[: sum(sizes)], total[sum(sizes) :].view(len(self.expert_blocks), -1)
        norm = flat.norm().item() / self.options.processes
        flat *= min(1.0, MAX_GRADIENT_NORM / (norm + 1e-6)) / self.options.processes
        for param, gradient in zip(self.params, flat.split(sizes)):
            param.grad = gradient.view_as(param)
        return clock.item(), norm, loads

    def update(self, progress: float, loads: Tensor, factor: float) -> None:
        """One step of the optimisers, and of the biases that even out the experts without a loss term."""
        for optimizer, rates in zip(self.optimizers, self.rates):
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * factor
            optimizer.step()
        for param in self.params:
            param.grad = None
        speed = self.options.bias_speed * min(1.0, 2 * (1 - progress))
        for block, load in zip(self.expert_blocks, loads):
            block.bias += speed * torch.sign(load.mean() - load)
            block.load.zero_()

    def report(self, step: int, seconds: float, tokens: int, factor: float, loads: Tensor) -> None:
        """A line of means since the last one; "special" is the loss on drills and long documents alone."""
        loss, mtp_loss, norm = np.mean([record[:3] for record in self.records], 0)
        special = [record.loss for record in self.records if record.unusual]
        self.records = []
        imbalance = (loads.max(1)[0] / loads.mean(1)).max().item()
        self.log(
            f"step {step} {seconds:.0f}s tokens {tokens / 1e6:.2f}M loss {loss:.4f} "
            f"special {np.mean(special) if special else 0:.4f} mtp {mtp_loss:.4f} norm {norm:.2f} "
            f"{tokens / seconds:.0f} tokens/s rate {factor:.3f} imbalance {imbalance:.2f}"
        )

    def evaluate(self) -> None:
        """Exact match on a quarter of the development questions; the other processes wait in `meet`."""
        if self.rank == 0:
            results = exact_matches(self.model, self.tokenizer, self.development, DTYPE)
            self.log("  development", shares(self.development, results))

    def save(self) -> None:
        """Writes the checkpoint, whole or not at all."""
        path = self.options.work / self.options.out
        torch.save(self.model.state_dict(), path.with_suffix(".tmp"))
        os.replace(path.with_suffix(".tmp"), path)

    def run(self) -> None:
        """Trains until the time or the number of steps is up."""
        options = self.options
        self.model.train()
        if options.compile:
            self.compile()
        start = saved = time.time()
        step, tokens, progress = 0, 0, 0.0
        while progress < 1 and not (options.steps and step >= options.steps):
            factor = learning_rate_factor(step, progress, options.warmup)
            stage = self.batches.stage(step, progress)
            loss, mtp_loss, count = self.backward(stage)
            progress, norm, loads = self.meet(step, (time.time() - start) / (options.minutes * 60))
            self.update(progress, loads, factor)
            step += 1
            tokens += count * options.processes
            self.records.append(Record(loss.item(), mtp_loss.item(), norm, stage != "mix"))
            if step % options.log_steps == 0:
                self.report(step, time.time() - start, tokens, factor, loads)
            if options.eval_steps and step % options.eval_steps == 0:
                self.evaluate()
            if self.rank == 0 and (time.time() - saved > SAVE_SECONDS):
                saved = time.time()
                self.save()
        if self.rank == 0:
            self.save()
        self.log(f"done: {step} steps, {tokens} tokens, {time.time() - start:.0f}s")

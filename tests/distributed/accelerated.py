"""What the ranks run for test_accelerate.py; also run in one process, without torch.distributed's
two.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.utils.data import DataLoader, TensorDataset

import tracer_core
from tests.distributed.models import MODELS, loss_of
from tests.distributed.training import CLOSE, EXACT, counts_of, same_on_all_ranks, state_of
from tracer_core.testing import CaptureCounter, compare


def _accelerator(**settings: Any) -> Accelerator:
    for value in (AcceleratorState, GradientState, PartialState):
        value._reset_state()
    return Accelerator(cpu=True, **settings)


def _trainer(model: Any, folder: str) -> Any:
    from transformers import Trainer, TrainingArguments

    settings = TrainingArguments(
        output_dir=folder, max_steps=5, per_device_train_batch_size=4, learning_rate=0.01,
        report_to=[], use_cpu=True,
        save_strategy="no", logging_steps=1, disable_tqdm=True, seed=0, dataloader_pin_memory=False,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(3)
    rows = [
        {"input_ids": torch.randint(0, 50, (6,), generator=generator), "labels": i % 4}
        for i in range(40)
    ]
    return Trainer(model=model, args=settings, train_dataset=rows)


def trainer() -> dict[str, Any]:
    """Five steps of transformers' Trainer."""
    results = []
    with CaptureCounter() as counter:
        for compiled in (False, True):
            for value in (AcceleratorState, GradientState, PartialState):
                value._reset_state()
            model = MODELS["bert"][0]()
            if compiled:
                model = tracer_core.compile(model, backend="eager")
            with tempfile.TemporaryDirectory() as folder:
                result = _trainer(model, folder)
                result.train()
            losses = [row["loss"] for row in result.state.log_history if "loss" in row]
            assert len(losses) == 5, losses
            results.append([losses, state_of(model)])
    compare(*results, EXACT)
    return counts_of(counter)


def _loader(name: str) -> DataLoader:
    generator = torch.Generator().manual_seed(3)
    inputs = MODELS[name][1](24, generator)
    return DataLoader(TensorDataset(inputs, torch.randn(24, 4, generator=generator)), batch_size=4)


def _train(
    name: str, when: str, backend: str, settings: dict[str, Any]
) -> tuple[list[Any], Any, Any]:
    """when: "before" or "after" prepare() the model is compiled; "never"."""
    accelerator = _accelerator(**settings)
    model = MODELS[name][0]()
    if when == "before":
        model = tracer_core.compile(model, backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    model, optimizer, loader, schedule = accelerator.prepare(
        model, optimizer, _loader(name), schedule
    )
    called = tracer_core.compile(model, backend=backend) if when == "after" else model
    seen: list[Any] = []
    for x, y in loader:
        with accelerator.accumulate(model):
            torch.manual_seed(1)
            loss = loss_of(name, called, x, y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            seen.append(loss.detach().clone())
    seen.append(accelerator.gather(seen[-1].reshape(1)))
    eager = accelerator.unwrap_model(called)
    seen.append(state_of(eager))
    return seen, accelerator, called


def trained(name: str, when: str, backend: str = "eager", **settings: Any) -> dict[str, Any]:
    want, accelerator, _ = _train(name, "never", backend, settings)
    assert accelerator.num_processes == (dist.get_world_size() if dist.is_initialized() else 1)
    with CaptureCounter() as counter:
        got, _, model = _train(name, when, backend, settings)
    compare(want, got, EXACT if backend == "eager" else CLOSE)
    if dist.is_initialized():
        same_on_all_ranks([parameter.detach() for parameter in model.parameters()])
    return counts_of(counter)


def unwrapped(when: str) -> None:
    """unwrap_model gives the model with its own class behind; saving and loading go round."""
    _, accelerator, model = _train("mlp", when, "eager", {})
    names = list(MODELS["mlp"][0]().state_dict())
    for keep in (True, False):
        eager = accelerator.unwrap_model(model, keep_torch_compile=keep)
        assert isinstance(eager, torch.nn.Sequential), type(eager)
        assert list(eager.state_dict()) == names
        compare(model(torch.ones(2, 8)), eager(torch.ones(2, 8)), EXACT)
    with tempfile.TemporaryDirectory() as folder:
        folders: list[Any] = [folder]
        if dist.is_initialized():
            dist.broadcast_object_list(folders)
        before = state_of(accelerator.unwrap_model(model))
        accelerator.save_state(folders[0])
        accelerator.wait_for_everyone()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        accelerator.load_state(folders[0])
        after = state_of(accelerator.unwrap_model(model))
        accelerator.wait_for_everyone()
    compare(before, after, EXACT)

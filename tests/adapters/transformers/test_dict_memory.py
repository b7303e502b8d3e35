"""`DictMemory`: what it stores, draws and refuses."""

import pytest
import torch
from support.libraries import need

need("transformers")

from gradproj.adapters.transformers import DictMemory  # noqa: E402
from gradproj.adapters.transformers.memory import trimmed  # noqa: E402


def batch(count=4, length=3):
    ids = torch.arange(count * length).reshape(count, length)
    return {"labels": torch.arange(count), "input_ids": ids}


def test_parts_of_a_sample_stay_together():
    memory = DictMemory(per_task=3, seed=1)
    memory.add("a", batch())
    drawn = memory.sample("a", 2)
    assert torch.equal(drawn["input_ids"][:, 0], 3 * drawn["labels"])
    assert (len(memory), memory.per_task, memory.tasks) == (3, 3, ("a",))


def test_tasks_may_have_different_entries():
    memory = DictMemory()
    memory.add(0, batch())
    memory.add(1, {"pixels": torch.zeros(2, 5)})
    assert set(memory.sample(1, 1)) == {"pixels"}


def test_its_state_restores_the_draws(tmp_path):
    memory = DictMemory(per_task=4)
    memory.add("a", batch())
    torch.save(memory.state_dict(), tmp_path / "memory.pt")
    other = DictMemory(per_task=4, seed=5)
    other.load_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True))
    for _ in range(3):
        assert torch.equal(memory.sample("a", 2)["labels"], other.sample("a", 2)["labels"])


def test_wrong_batches_are_refused():
    memory = DictMemory()
    with pytest.raises(TypeError, match=r"batch\['text'\] is a list; the memory stores tensors"):
        memory.add("a", {"text": ["words"]})
    memory.add("a", batch())
    with pytest.raises(ValueError, match=r"earlier samples of task 'a' have \['input_ids'"):
        memory.add("a", {"labels": torch.arange(2)})


def test_common_padding_is_cut():
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]])
    cut = trimmed({"attention_mask": mask, "input_ids": 7 * mask, "labels": torch.ones(2)})
    assert cut["input_ids"].tolist() == [[7, 7], [7, 0]]
    assert cut["labels"].shape == (2,)
    assert trimmed(batch())["input_ids"].shape == (4, 3)


def test_labels_are_cut_only_if_they_are_one_per_token():
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]])
    tokens = torch.tensor([[3, 4, -100, -100], [5, -100, -100, -100]])
    assert trimmed({"attention_mask": mask, "labels": tokens})["labels"].tolist() == [
        [3, 4],
        [5, -100],
    ]
    classes = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 0]])  # as many classes as tokens
    kept = trimmed({"attention_mask": mask, "labels": classes})
    assert torch.equal(kept["labels"], classes)
    assert torch.equal(kept["attention_mask"], mask)
    assert trimmed({"attention_mask": 0 * mask})["attention_mask"].shape == (2, 4)

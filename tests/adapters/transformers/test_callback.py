"""`PreserveCallback` with the real Trainer of transformers and a tiny BERT."""

import pytest
import torch
from support.libraries import need

need("transformers")

from tiny_texts import arguments, collate, loss_on, make_model, make_task, weights  # noqa: E402
from transformers import Trainer  # noqa: E402

from gradproj.adapters.torch import Preserver  # noqa: E402
from gradproj.adapters.transformers import PreserveCallback  # noqa: E402

FIRST, SECOND = make_task(0), make_task(1)


def preserving(folder, model=None, dataset=FIRST, batches=None, strength=100.0, **options):
    model = model or make_model()
    callback = PreserveCallback(Preserver(model, strength=strength), batches)
    trainer = Trainer(model, arguments(folder, **options), train_dataset=dataset)
    trainer.add_callback(callback)
    return trainer, callback


def test_the_first_task_is_plain_training(tmp_path):
    plain = Trainer(make_model(), arguments(tmp_path), train_dataset=FIRST)
    plain.train()
    trainer, callback = preserving(tmp_path)
    trainer.train()
    assert torch.equal(weights(plain.model), weights(trainer.model))
    assert callback.preserver.tasks == 1
    assert trainer.model.training


def test_the_training_set_is_observed_without_its_padding(tmp_path):
    trainer, callback = preserving(tmp_path)
    trainer.train()
    expected = Preserver(trainer.model, strength=100.0)
    batch = collate(FIRST)
    trainer.model.eval()
    with torch.no_grad(), expected.observe(mask=batch["attention_mask"]):
        trainer.model(**batch)
    expected.consolidate()
    found, wanted = (
        preserver.state_dict()["layers"] for preserver in (callback.preserver, expected)
    )
    assert found
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-5)


def test_later_tasks_change_the_answers_to_the_first_less(tmp_path):
    changes = []
    for strength in (0.0, 100.0):
        trainer, _ = preserving(tmp_path, strength=strength, num_train_epochs=8)
        trainer.train()
        learned = loss_on(trainer.model, FIRST)
        trainer.train_dataset = SECOND
        trainer.train()
        changes.append(loss_on(trainer.model, FIRST) - learned)
    assert changes[0] > 0.1
    assert changes[1] < 0.5 * changes[0]


def test_accumulation_clipping_and_mixed_precision(tmp_path):
    found = []
    for size, count, bf16 in ((8, 1, False), (4, 2, False), (4, 2, True)):
        trainer, callback = preserving(
            tmp_path,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=count,
            max_grad_norm=0.1,
            bf16=bf16,
        )
        # BERT accepts num_items_in_batch and ignores it, so that Trainer would add up the losses.
        trainer.model_accepts_loss_kwargs = False
        trainer.train()
        trainer.train_dataset = SECOND
        trainer.train()
        assert callback.preserver.tasks == 2
        found.append(weights(trainer.model) - weights(make_model()))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    assert 0 < (found[2] - found[0]).norm() < 0.05 * found[0].norm()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, elsewhere):
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "optim": "adamw_torch"}
    whole, _ = preserving(tmp_path, **options)
    whole.train()
    whole.train_dataset = SECOND
    whole.train()

    folder = tmp_path / "moved" if elsewhere else tmp_path
    resumed, callback = preserving(folder, make_model(seed=9), SECOND, **options)
    checkpoint = tmp_path / "checkpoint-2"
    if elsewhere:
        callback.load(checkpoint)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert callback.preserver.tasks == 2
    torch.testing.assert_close(weights(whole.model), weights(resumed.model), rtol=0, atol=1e-7)


def test_a_checkpoint_without_the_moments_is_refused(tmp_path):
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    Trainer(make_model(), arguments(tmp_path, **options), train_dataset=FIRST).train()
    trainer, _ = preserving(tmp_path, **options)
    with pytest.raises(FileNotFoundError, match="written without PreserveCallback"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_some_batches_are_enough(tmp_path):
    trainer, callback = preserving(tmp_path, batches=1)
    seen = []
    trainer.model.register_forward_pre_hook(lambda model, _: seen.append(model.training))
    trainer.train()
    assert seen.count(False) == 1
    assert callback.preserver.tasks == 1


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield from FIRST


def test_an_endless_stream_is_observed_as_long_as_it_was_trained_on(tmp_path):
    options = {"max_steps": 3, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}
    trainer, callback = preserving(tmp_path, dataset=Endless(), **options)
    seen = []
    trainer.model.register_forward_pre_hook(lambda model, _: seen.append(model.training))
    trainer.train()
    assert seen == [True] * 6 + [False] * 6
    assert callback.preserver.tasks == 1


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing:FutureWarning")  # a newer name
@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing_factor": 0.1},
        {"gradient_checkpointing": True},
        {"torch_compile": True, "torch_compile_backend": "eager"},
        {"train_sampling_strategy": "group_by_length"},
        {"optim": "adamw_torch_fused", "weight_decay": 0.1, "warmup_steps": 1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_it_works_with_other_features_of_trainer(tmp_path, options):
    """Without strength the callback changes nothing; with strength it does."""
    found = []
    for strength in (None, 0.0, 100.0):
        torch.manual_seed(0)
        trainer, callback = preserving(tmp_path, strength=strength or 0.0, **options)
        if strength is None:
            trainer.remove_callback(callback)
        trainer.train()
        trainer.train_dataset = SECOND
        torch.manual_seed(1)  # some samplers draw from it, also for the observed batches
        trainer.train()
        found.append(weights(trainer.model))
    plain, none, some = found
    torch.testing.assert_close(none, plain, rtol=1e-5, atol=1e-6)
    assert (some - plain).norm() > 0.01 * (plain - weights(make_model())).norm()
    assert callback.preserver.tasks == 2


def test_a_failed_run_leaves_nothing_attached(tmp_path):
    trainer, callback = preserving(tmp_path)
    trainer.train_dataset = [{"input_ids": [1], "wrong": 1}]
    with pytest.raises(Exception):  # noqa: B017, PT011 (whatever transformers raises)
        trainer.train()
    trainer.train_dataset = FIRST
    trainer.train()
    assert callback.preserver.tasks == 1


def test_wrong_arguments_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"preserver is a BertForSequenceClassification; pass a"):
        PreserveCallback(make_model())
    with pytest.raises(ValueError, match="batches=0 is invalid: expected an integer >= 1 or None"):
        PreserveCallback(Preserver(make_model()), batches=0)
    trainer, _ = preserving(tmp_path)
    trainer.add_callback(PreserveCallback(Preserver(make_model())))
    with pytest.raises(ValueError, match="have different models"):
        trainer.train()

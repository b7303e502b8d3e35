"""`ProjectedTrainer` with the real Trainer of transformers and a tiny BERT."""

import pytest
import torch
from support.libraries import need

need("transformers")

from tiny_texts import arguments, loss_on, make_model, make_task, weights  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from transformers import Trainer  # noqa: E402

import gradproj as gp  # noqa: E402
from gradproj.adapters.torch import Projector  # noqa: E402
from gradproj.adapters.transformers import DictMemory, ProjectedTrainer  # noqa: E402

FIRST, SECOND = make_task(0), make_task(1)


def trainer_with_memory(folder, method=None, tasks=1, **options):
    """A trainer for the second task that remembers others."""
    trainer = ProjectedTrainer(
        make_model(),
        arguments(folder, **options),
        train_dataset=SECOND,
        memory=DictMemory(per_task=8, seed=3),
        method=method,
    )
    for task in range(tasks):
        trainer.remember(f"task {task}", make_task(2 * task))
    return trainer


def test_without_old_tasks_it_is_a_trainer(tmp_path):
    models = [make_model(), make_model()]
    Trainer(models[0], arguments(tmp_path), train_dataset=FIRST).train()
    ProjectedTrainer(models[1], arguments(tmp_path), train_dataset=FIRST).train()
    assert torch.equal(weights(models[0]), weights(models[1]))


def test_a_step_is_that_of_the_projector(tmp_path):
    trainer = trainer_with_memory(tmp_path, gp.GEM(), max_steps=1, learning_rate=0.5)
    batches = []

    def record(model, inputs, **kwargs):
        batches.append(dict(inputs))
        return ProjectedTrainer.compute_loss(trainer, model, inputs, **kwargs)

    trainer.compute_loss = record
    trainer.train()

    new, old = batches
    expected = make_model()
    projector = Projector(expected, gp.GEM())
    projector.backward(expected(**new).loss, [lambda: expected(**old).loss])
    assert projector.last.corrected.any()
    with torch.no_grad():
        for p in expected.parameters():
            p -= 0.5 * p.grad
    torch.testing.assert_close(weights(trainer.model), weights(expected), rtol=1e-5, atol=1e-6)


def test_accumulated_gradients_are_projected_together(tmp_path):
    found = []
    for size, count in ((8, 1), (4, 2)):
        trainer = trainer_with_memory(
            tmp_path,
            gp.GEM(),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=count,
            max_steps=2,
        )
        trainer.old_batch_size = 8
        # BERT accepts num_items_in_batch and ignores it, so that Trainer would add up the losses.
        trainer.model_accepts_loss_kwargs = False
        trainer.train()
        assert trainer.projector.last.corrected.any()
        found.append(weights(trainer.model))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_mixed_precision_is_close_to_single_precision(tmp_path):
    exact, mixed = (
        trainer_with_memory(tmp_path, gp.GEM(), max_steps=2, bf16=bf16) for bf16 in (False, True)
    )
    start = weights(make_model())
    exact.train()
    mixed.train()
    assert mixed.projector.last.corrected.any()
    steps = [weights(trainer.model) - start for trainer in (exact, mixed)]
    assert 0 < (steps[0] - steps[1]).norm() < 0.05 * steps[0].norm()


@pytest.mark.parametrize("at", ["folder", "last"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, at):
    # S-GEM draws a task per step, and the memory draws batches: both are part of the state.
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "optim": "adamw_torch"}
    whole = trainer_with_memory(tmp_path, gp.SGEM(seed=5), tasks=3, **options)
    whole.old_batch_size = 4
    whole.train()

    resumed = ProjectedTrainer(
        make_model(seed=9),
        arguments(tmp_path, **options),
        train_dataset=SECOND,
        memory=DictMemory(per_task=8, seed=7),
        method=gp.SGEM(seed=8),
        old_batch_size=4,
    )
    checkpoint = tmp_path / "checkpoint-2"
    if at == "last":
        (tmp_path / "checkpoint-4").rename(tmp_path / "later")
    resumed.train(resume_from_checkpoint=str(checkpoint) if at == "folder" else True)
    assert resumed.memory.tasks == whole.memory.tasks
    assert torch.equal(weights(whole.model), weights(resumed.model))


def test_a_checkpoint_of_another_trainer_is_refused(tmp_path):
    args = arguments(tmp_path, max_steps=1, save_strategy="steps", save_steps=1)
    Trainer(make_model(), args, train_dataset=FIRST).train()
    with pytest.raises(FileNotFoundError, match="written without ProjectedTrainer"):
        ProjectedTrainer(make_model(), args, train_dataset=FIRST).train(resume_from_checkpoint=True)


def test_it_logs_and_evaluates_as_a_trainer(tmp_path):
    trainer = ProjectedTrainer(
        make_model(),
        arguments(tmp_path, logging_strategy="steps", logging_steps=1, eval_strategy="epoch"),
        train_dataset=SECOND,
        eval_dataset=FIRST,
        method=gp.GEM(),
    )
    trainer.remember("first", FIRST)
    trainer.train()
    history = trainer.state.log_history
    assert [entry["step"] for entry in history if "corrected" in entry] == [1, 2, 3, 4]
    assert all(0 <= entry["corrected"] <= 1 for entry in history if "corrected" in entry)
    evaluation = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    assert evaluation == pytest.approx([loss_on(trainer.model, FIRST)], rel=1e-5)


def test_it_forgets_less_than_a_trainer(tmp_path):
    losses = []
    for kind in (Trainer, ProjectedTrainer):
        trainer = kind(make_model(), arguments(tmp_path, num_train_epochs=8), train_dataset=FIRST)
        trainer.train()
        learned = loss_on(trainer.model, FIRST)
        if kind is ProjectedTrainer:
            trainer.remember("first")
        trainer.train_dataset = SECOND
        trainer.train()
        losses.append(loss_on(trainer.model, FIRST) - learned)
    assert losses[0] > 0.1
    assert losses[1] < 0.3 * losses[0]


@pytest.mark.parametrize("count", [1, 2])
def test_a_loss_that_divides_by_the_number_of_items(tmp_path, count):
    """Trainer documents this form of `compute_loss_func`; it equals the loss of the model."""

    def total(outputs, labels, num_items_in_batch):
        return cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch

    found = []
    for loss in (None, total):
        trainer = trainer_with_memory(
            tmp_path,
            gp.GEM(strength=0.5),  # depends on the scale of the old gradients
            per_device_train_batch_size=4,
            gradient_accumulation_steps=count,
            max_steps=2,
        )
        trainer.compute_loss_func = loss
        trainer.model_accepts_loss_kwargs = False
        trainer.train()
        assert trainer.projector.last.corrected.any()
        found.append(weights(trainer.model))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing:FutureWarning")  # a newer name
@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing_factor": 0.1},
        {"gradient_checkpointing": True},
        {"torch_compile": True, "torch_compile_backend": "eager"},
        {"train_sampling_strategy": "group_by_length"},
        {"optim": "adamw_torch", "weight_decay": 0.1, "warmup_steps": 1, "max_grad_norm": 0.1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_it_works_with_other_features_of_trainer(tmp_path, options):
    """Copies of the new task as the old one: GEM changes nothing, as in a Trainer."""
    found = []
    for kind in (Trainer, ProjectedTrainer):
        torch.manual_seed(0)
        trainer = kind(make_model(), arguments(tmp_path, **options), train_dataset=SECOND[:8])
        if kind is ProjectedTrainer:
            trainer._options["method"] = gp.GEM()
            trainer.remember("the same", SECOND[:8])
        trainer.train()
        found.append(weights(trainer.model))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
    assert trainer.projector.last is not None


def test_the_best_model_is_loaded_at_the_end(tmp_path):
    trainer = ProjectedTrainer(
        make_model(),
        arguments(
            tmp_path,
            num_train_epochs=3,
            load_best_model_at_end=True,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=1,
        ),
        train_dataset=SECOND,
        eval_dataset=FIRST,
    )
    trainer.remember("first", FIRST)
    trainer.train()
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(losses) == 3
    assert loss_on(trainer.model, FIRST) == pytest.approx(min(losses), rel=1e-5)


def test_remembering_leaves_the_evaluation_set_alone(tmp_path):
    """Trainer keeps the evaluation loader if its workers are persistent."""
    trainer = ProjectedTrainer(
        make_model(),
        arguments(tmp_path, dataloader_num_workers=1, dataloader_persistent_workers=True),
        train_dataset=SECOND,
        eval_dataset=FIRST[:6],
    )
    trainer.remember("second")
    assert len(trainer.get_eval_dataloader().dataset) == 6


@pytest.mark.parametrize("name", ["deepspeed", "fsdp"])
def test_sharding_inside_of_trainer_is_refused(tmp_path, name):
    trainer = trainer_with_memory(tmp_path)
    setattr(trainer, f"is_{name}_enabled", True)  # as Trainer does; neither runs on a CPU
    with pytest.raises(ValueError, match=rf"(?i)does not work with {name}"):
        trainer.train()


def test_columns_that_the_model_does_not_take_are_not_stored(tmp_path):
    samples = [{**sample, "text": "words"} for sample in FIRST]
    trainer = ProjectedTrainer(make_model(), arguments(tmp_path), train_dataset=samples)
    trainer.remember("first")
    assert sorted(trainer.memory.sample("first", 1)) == ["attention_mask", "input_ids", "labels"]


def test_what_cannot_be_remembered_is_refused(tmp_path):
    trainer = trainer_with_memory(tmp_path)
    with pytest.raises(ValueError, match="'task 0' is in the memory already"):
        trainer.remember("task 0")
    with pytest.raises(TypeError, match="dataset is a generator without a length"):
        trainer.remember("endless", (sample for sample in FIRST))


def test_wrong_arguments_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"memory is a list; pass a .*DictMemory"):
        ProjectedTrainer(make_model(), arguments(tmp_path), memory=[])
    with pytest.raises(ValueError, match="old_batch_size=0 is invalid: expected an integer >= 1"):
        ProjectedTrainer(make_model(), arguments(tmp_path), old_batch_size=0)

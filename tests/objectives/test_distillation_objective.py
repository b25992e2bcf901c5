"""A teacher: DistilBERT's loss as its script has it, logits kept on disk, and teachers that do not fit."""

import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tiny_language import row_seeds, some_rows, tiny_model
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.batch import Batch
from homespun.data.labels import Labels
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.models.bundle import ModelBundle, load_model, save_model, weights_of
from homespun.models.composite_heads import LastLayersHeadConfig
from homespun.models.config import ModelConfig
from homespun.models.heads import MaskedLMHeadConfig
from homespun.models.sequence_heads import LinearHeadConfig
from homespun.nn.vocabulary_loss import soft_label_loss
from homespun.objectives.distillation import LabelTeacher, TokenTeacher
from homespun.objectives.mlm import MaskedLM
from homespun.objectives.teacher import LogitCache, Teacher
from homespun.tasks.classification import Classification
from homespun.tasks.texts import LabelledData, LabelledText, PairsData
from homespun.text.tokenizer import Tokenizer

LABELS = Labels(("a", "b", "c"))
SEVERAL = Labels(("a", "b", "c"), multi_label=True)


def saved(folder: Path, tokenizer: Tokenizer, head: Any, *, labels: Labels | None = None, **fields: Any) -> Path:
    torch.manual_seed(17)
    config = tiny_model(tokenizer, **fields).model_copy(update={"head": head})
    save_model(folder, config.build(), config, tokenizer, labels=labels)
    return folder


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    return saved(tmp_path_factory.mktemp("teachers") / "filler", tokenizer, MaskedLMHeadConfig())


@pytest.fixture(scope="module")
def labeller(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    head = LinearHeadConfig(num_labels=3)
    return saved(tmp_path_factory.mktemp("teachers") / "labeller", tokenizer, head, labels=LABELS)


def taught(tokenizer: Tokenizer, source: Path, *, model: ModelConfig | None = None, **fields: Any) -> tuple[Any, Batch]:
    config = MaskedLM(teacher=TokenTeacher(source=str(source), **fields))
    torch.manual_seed(5)
    objective = config.build(model or tiny_model(tokenizer, type_vocab_size=0), tokenizer).eval()
    rows = some_rows(tokenizer, [13, 24, 3, 17])
    collate = pickle.loads(pickle.dumps(config.collate(tokenizer)))
    return objective, collate(rows, row_seeds(len(rows)))


def logits(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    hidden = model.backbone(batch.input_ids, attention_mask=batch.attention_mask)
    return model.head(hidden), hidden


@pytest.mark.parametrize("positions", ["masked", "all"])
def test_loss_is_that_of_the_released_script(positions: str, tokenizer: Tokenizer, filler: Path) -> None:
    objective, batch = taught(tokenizer, filler, positions=positions)
    student, hidden = logits(objective.model, batch)
    teacher_logits, their_hidden = logits(load_model(filler).model, batch)
    real = batch.attention_mask.bool()
    chosen = torch.zeros_like(real).flatten()
    chosen[batch.positions] = True
    chosen = chosen.view(real.shape) if positions == "masked" else real
    truth = torch.full_like(batch.input_ids, -100).flatten()
    truth[batch.positions] = batch.labels
    soft = nn.KLDivLoss(reduction="batchmean")(
        F.log_softmax(student[chosen] / 2.0, dim=-1), F.softmax(teacher_logits[chosen] / 2.0, dim=-1)
    )
    hard = F.cross_entropy(student.flatten(0, 1), truth, ignore_index=-100)
    ones = torch.ones(int(real.sum()))
    cosine = nn.CosineEmbeddingLoss(reduction="mean")(hidden[real], their_hidden[real], ones)
    total = objective(batch).total(batch.targets)
    torch.testing.assert_close(total, 5.0 * soft * 2.0**2 + 2.0 * hard + 1.0 * cosine, rtol=1e-5, atol=1e-5)
    for name, term in objective(batch).terms.items():
        assert batch.targets[name] == float(term.count), name


def test_the_teacher_is_no_part_of_what_is_trained(tokenizer: Tokenizer, filler: Path) -> None:
    objective, batch = taught(tokenizer, filler)
    student = sum(p.numel() for p in objective.model.parameters())
    assert sum(p.numel() for p in objective.parameters()) == student
    assert sum(t.numel() for t in weights_of(objective).values()) == student
    before = {name: t.clone() for name, t in objective.teacher.stored.model.state_dict().items()}
    objective.train()
    objective(batch).total(batch.targets).backward()
    assert not objective.teacher.stored.model.training
    for name, tensor in objective.teacher.stored.model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(p.grad is None for p in objective.teacher.stored.model.parameters())


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_size": 24, "intermediate_size": 40},
        {"attention": {"kind": "linformer", "k": 7}},
        {"embedding_size": 12},
        {"num_hidden_layers": 1},
    ],
)
def test_a_student_of_another_shape(fields: dict[str, Any], tokenizer: Tokenizer, filler: Path) -> None:
    model = tiny_model(tokenizer, type_vocab_size=0, **fields)
    objective, batch = taught(tokenizer, filler, model=model)
    objective.train()
    loss = objective(batch)
    assert set(loss.terms) == {"mlm", "mlm_accuracy", "soft", "cosine"}
    loss.total(batch.targets).backward()
    assert all(p.grad is not None for p in objective.parameters())
    product, config = objective.export_model()
    assert weights_of(product).keys() == weights_of(config.build()).keys()  # a projection is not kept


def some_texts(tokenizer: Tokenizer, labels: Labels = LABELS, count: int = 7) -> list[Row]:
    random = np.random.default_rng(3)
    rows = []
    for number in range(count):
        label = (random.random(3) > 0.5).astype(np.int64) if labels.multi_label else number % 3
        rows.append(Row(random.integers(5, tokenizer.vocab_size, 3 + 2 * number), label=label))
    return rows


def classifier(tokenizer: Tokenizer, source: Path, labels: Labels = LABELS, **fields: Any) -> tuple[Any, Batch]:
    config = Classification(head=LinearHeadConfig(), teacher=LabelTeacher(source=str(source), **fields))
    model = tiny_model(tokenizer, type_vocab_size=0)
    torch.manual_seed(5)
    objective = config.wrap(config.build(model.build(), model, labels), tokenizer, labels).eval()
    collate = pickle.loads(pickle.dumps(config.collate(tokenizer.pad_id, labels)))
    return objective, collate(some_texts(tokenizer, labels), [])


def test_soft_and_hard_labels(tokenizer: Tokenizer, labeller: Path) -> None:
    objective, batch = classifier(tokenizer, labeller, soft=3.0, hard=0.5)
    student = objective.model(batch.input_ids, batch.attention_mask)
    teacher_logits = load_model(labeller).model(batch.input_ids, batch.attention_mask)
    soft = (
        nn.KLDivLoss(reduction="batchmean")(F.log_softmax(student / 2, dim=-1), F.softmax(teacher_logits / 2, dim=-1))
        * 4
    )
    total = objective(batch).total(batch.targets)
    torch.testing.assert_close(total, 3.0 * soft + 0.5 * F.cross_entropy(student, batch.labels), rtol=1e-5, atol=1e-5)
    for name, term in objective(batch).terms.items():
        assert batch.targets[name] == float(term.count), name


def test_several_labels_a_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    source = saved(tmp_path / "several", tokenizer, LinearHeadConfig(num_labels=3), labels=SEVERAL)
    objective, batch = classifier(tokenizer, source, SEVERAL, temperature=1.0)
    student = objective.model(batch.input_ids, batch.attention_mask)
    teacher_logits = load_model(source).model(batch.input_ids, batch.attention_mask)
    p, q = teacher_logits.sigmoid(), student.sigmoid()
    by_hand = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean(-1)
    torch.testing.assert_close(objective(batch).terms["soft"].sum, by_hand.sum(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("segments", [(2, 0), (2, 1), (2, 2), (1, 2)], ids=str)
def test_teacher_and_student_read_pairs_with_their_own_segments(
    segments: tuple[int, int], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    head, (theirs, ours) = LinearHeadConfig(num_labels=3), segments
    source = saved(tmp_path / "teacher", tokenizer, head, labels=LABELS, type_vocab_size=theirs)
    config = tiny_model(tokenizer, type_vocab_size=ours)
    torch.manual_seed(5)
    student, teacher = ModelBundle(config.build(), config, tokenizer), load_model(source)
    examples = [LabelledText("a b c", "a", "b a"), LabelledText("c a", "b", "c b b"), LabelledText("b", "c", "a")]
    objective = Classification(head=head, teacher=LabelTeacher(source=str(source)))
    tasks = [objective.task(PairsData(max_length=20), stored, examples) for stored in (student, teacher)]
    rows = [task.rows(examples) for task in tasks]
    setup = tasks[0].training_setup(objective, student, rows[0])
    module: Any = setup.objective.eval()
    loss = module(setup.collate([setup.rows[number] for number in range(3)], []))
    models = module.model, teacher.model
    alone = [task.outputs(model, part) for task, model, part in zip(tasks, models, rows, strict=True)]
    soft = soft_label_loss(*map(torch.from_numpy, alone), temperature=2.0).sum()
    torch.testing.assert_close(loss.terms["soft"].sum, soft)


def test_rows_longer_than_the_teacher_are_refused_before_training(tokenizer: Tokenizer, tmp_path: Path) -> None:
    head = LinearHeadConfig(num_labels=3)
    source = saved(tmp_path / "teacher", tokenizer, head, labels=LABELS, max_position_embeddings=8)
    config = tiny_model(tokenizer)
    student = ModelBundle(config.build(), config, tokenizer)
    objective = Classification(head=head, teacher=LabelTeacher(source=str(source)))
    for text, fits in (("a b c", True), ("a b c " * 9, False)):
        examples = [LabelledText("a", "a"), LabelledText("b", "b"), LabelledText(text, "c")]
        task = objective.task(LabelledData(max_length=20), student, examples)
        with nullcontext() if fits else pytest.raises(UserError, match=r"reads at most 8 .* data\.max_length=8"):
            task.training_setup(objective, student, task.rows(examples))


def test_hidden_states_of_texts(tokenizer: Tokenizer, labeller: Path) -> None:
    objective, batch = classifier(tokenizer, labeller, cosine=1.0)
    keep = batch.attention_mask
    ours, theirs = (
        m.backbone(batch.input_ids, attention_mask=keep) for m in (objective.model, load_model(labeller).model)
    )
    by_hand = [
        (1 - torch.cosine_similarity(a[: int(k.sum())], b[: int(k.sum())], dim=-1)).mean().item()
        for a, b, k in zip(ours, theirs, keep, strict=True)
    ]
    assert objective(batch).terms["cosine"].sum.item() == pytest.approx(sum(by_hand), rel=1e-5)
    assert batch.targets["cosine"] == 7.0


def test_kept_logits_are_the_teachers(tmp_path: Path, tokenizer: Tokenizer, labeller: Path) -> None:
    fresh, batch = classifier(tokenizer, labeller)
    keeping, _ = classifier(tokenizer, labeller, cache=str(tmp_path / "kept"))
    first = keeping(batch).terms["soft"].sum
    torch.testing.assert_close(first, fresh(batch).terms["soft"].sum, rtol=2e-3, atol=2e-3)  # of float16
    again, _ = classifier(tokenizer, labeller, cache=str(tmp_path / "kept"))

    def refuse(*_: Any) -> Tensor:
        raise AssertionError("the teacher was asked again")

    again.teacher.logits = refuse
    assert torch.equal(again(batch).terms["soft"].sum, first)
    order = [3, 0, 6]
    mixed = Batch(batch.input_ids[order], batch.attention_mask[order] if batch.attention_mask is not None else None)
    kept = LogitCache(Teacher.open(str(labeller), tokenizer), tmp_path / "kept", labels=3, limit=10**6)
    kept.teacher.logits = refuse
    assert kept(mixed).shape == (3, 3)


def test_kept_logits_are_bounded(tmp_path: Path, tokenizer: Tokenizer, labeller: Path) -> None:
    objective, batch = classifier(tokenizer, labeller, cache=str(tmp_path), cache_size=20)
    objective(batch)
    assert sum(path.stat().st_size for path in tmp_path.rglob("vectors")) <= 20
    assert torch.isfinite(objective(batch).terms["soft"].sum)


def test_another_tokenizer_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    other = Tokenizer.train(["zz yy xx ww"], kind="words", vocab_size=9)
    source = saved(tmp_path / "other", other, MaskedLMHeadConfig())
    with pytest.raises(UserError, match="one tokenizer") as student:
        taught(tokenizer, source)
    assert "\n" not in str(student.value)


def test_teachers_that_do_not_fit(tmp_path: Path, tokenizer: Tokenizer, filler: Path, labeller: Path) -> None:
    with pytest.raises(UserError, match="no masked LM head"):
        taught(tokenizer, labeller)
    with pytest.raises(UserError, match="has no labels"):
        classifier(tokenizer, filler)
    with pytest.raises(UserError, match=r" a, b, c.* a, b, d"):
        classifier(tokenizer, labeller, Labels(("a", "b", "d")))
    several = LastLayersHeadConfig(layers=2, head=LinearHeadConfig(num_labels=3))
    layers = saved(tmp_path / "layers", tokenizer, several, labels=LABELS)
    classifier(tokenizer, layers)
    with pytest.raises(UserError, match=r"teacher\.cosine=0"):
        classifier(tokenizer, layers, cosine=1.0)
    with pytest.raises(UserError, match="model/ folder"):
        taught(tokenizer, tmp_path / "nothing")
    with pytest.raises(UserError, match="source is empty"):
        MaskedLM(teacher=TokenTeacher()).build(tiny_model(tokenizer), tokenizer)


def test_settings_that_do_not_go_together() -> None:
    with pytest.raises(ValidationError, match="disable the teacher"):
        TokenTeacher(soft=0, cosine=0)
    with pytest.raises(ValidationError, match="set one of them"):
        LabelTeacher(cache="somewhere", cosine=1.0)
    with pytest.raises(ValidationError, match="next_sentence=true"):
        MaskedLM(next_sentence=True, teacher=TokenTeacher())
    with pytest.raises(ValidationError, match="compares last layers"):
        Classification(last_layers=2, teacher=LabelTeacher(cosine=1.0))


def test_rows_longer_than_the_teacher(tmp_path: Path, tokenizer: Tokenizer) -> None:
    source = saved(tmp_path / "short", tokenizer, MaskedLMHeadConfig(), max_position_embeddings=8)
    objective, batch = taught(tokenizer, source)
    with pytest.raises(UserError, match=" 8 tokens"):
        objective(batch)

"""Lead of a report: the result, whether it beat the baselines, then what was trained."""

from __future__ import annotations

from collections.abc import Sequence

from homespun.report import formats, tasks
from homespun.report.records import RunRecord, as_tree, final_losses, pretraining_quantity
from homespun.report.significance import difference_interval, wilson_interval
from homespun.report.unigram_baseline import compare_with_unigram_baseline
from homespun.results import Metrics, mean_over_trainings

_SENTENCE = {"majority": "the majority class", "tfidf": "TF-IDF + linear"}


def summary(records: Sequence[RunRecord]) -> list[str]:
    """One paragraph for pretraining and one for every fine-tuned model."""
    pretrained = [record for record in records if not record.tests() and not record.result.baselines]
    paragraphs = [_pretraining(pretrained)] if pretrained else []
    paragraphs += [_finetuning(record) for record in records if record not in pretrained]
    return [*paragraphs, *(_initialization(record) for record in records if record.result.vectors)]


def warnings(records: Sequence[RunRecord]) -> list[str]:
    """A sentence for every run that is not a whole one."""
    return [f"{record.name} {record.warning}." for record in records if record.warning]


def _pretraining(records: Sequence[RunRecord]) -> str:
    names = formats.listed([record.name for record in records])
    many = len(records) > 1
    sentences = []
    scores = {r.name: loss for r in records if (loss := final_losses(r)[1].get("loss")) is not None}
    # losses of other objectives, or on other texts, are other quantities: only equal ones are ranked
    if len(scores) > 1 and len({pretraining_quantity(record) for record in records}) == 1:
        best = min(scores, key=lambda name: scores[name])
        rest = ", ".join(f"{formats.loss(loss)} ({name})" for name, loss in scores.items() if name != best)
        sentences.append(f"Lowest validation loss: {best}, {formats.loss(scores[best])}; others: {rest}.")
    elif scores:
        values = formats.listed(
            [f"{formats.loss(loss)}" + (f" ({name})" if many else "") for name, loss in scores.items()]
        )
        sentences.append(f"Validation loss: {values}.")
    sentences += compare_with_unigram_baseline({record.name: [record] for record in records})
    return " ".join([*sentences, f"Trained{_circumstances(records)}: {names}."])


def _initialization(record: RunRecord) -> str:
    vectors = record.result.vectors
    assert vectors is not None
    found, tokens, source = (
        formats.integer(vectors.found),
        formats.integer(vectors.tokens),
        formats.text(vectors.source),
    )
    return f"Embeddings of {record.name} initialised from word vectors of {source}: {found} of {tokens} tokens had one."


def _finetuning(record: RunRecord) -> str:
    if not record.names_classes:
        return " ".join(tasks.summarize(record, _circumstances([record])))
    tests = record.tests()
    classes = len(tests[0].per_class) if tests else 0
    task = f"{classes}-class classification" if classes else "classification"
    trained = f"Fine-tuned{_circumstances([record])}."
    accuracy, f1, rows = (
        mean_over_trainings(tests, "accuracy"),
        mean_over_trainings(tests, "macro_f1"),
        record.test_rows(),
    )
    if accuracy is None:
        return f"{record.name}: {task}, not tested. {trained}"
    result = f"{record.name}: {task}, accuracy {formats.percent(accuracy[0])}"
    if rows is not None:
        interval = "" if len(tests) > 1 else f", 95 % interval {formats.interval(wilson_interval(accuracy[0], rows))}"
        result += f" on {formats.integer(rows)} test examples{interval}"
    result += f", macro F1 {formats.share(f1[0])}" if f1 else ""
    result += f", mean of {len(tests)} trainings" if len(tests) > 1 else ""
    sentences = [f"{result}."]
    if record.result.measured_on == "validation":
        sentences.append(
            "These are validation scores, and the same examples chose the checkpoint: measure on a separate test set."
        )
    sentences += [
        f"It {compare_with_baseline(tests, baseline, _SENTENCE.get(name, name), rows=rows)}."
        for name, baseline in sorted(record.result.baselines.items(), key=lambda item: item[0] == "majority")
        if mean_over_trainings([baseline], "accuracy")
    ]
    cut = record.result.number("truncated")
    if cut:
        sentences.append(f"Texts truncated to the length of the model: {formats.integer(cut)}.")
    if one_sided := record.result.number("one_sided"):
        sentences.append(f"Pairs with an empty side, from which nothing was learned: {formats.integer(one_sided)}.")
    chunked = record.result.number("chunked")
    if chunked:
        sentences.append(f"Texts read in chunks: {formats.integer(chunked)}.")
    return " ".join([*sentences, trained])


def compare_with_baseline(tests: Sequence[Metrics], baseline: Metrics, name: str, *, rows: float | None) -> str:
    """End of a sentence that begins with ``It``: the difference from a baseline in points of accuracy.

    ``beat`` stands only where the 95 % interval of the difference is above zero.
    """
    accuracy, reference = mean_over_trainings(tests, "accuracy"), mean_over_trainings([baseline], "accuracy")
    if accuracy is None or reference is None:
        return f"cannot be compared with {name}"
    other = reference[0]
    gain = accuracy[0] - other
    difference = f"{abs(100 * gain):.1f}" if abs(gain) >= 0.0005 or gain == 0 else "less than 0.1"
    interval = None if rows is None else difference_interval(accuracy[0], other, rows)
    if gain > 0 and interval is not None and interval[0] > 0:
        words = f"beat {name} ({formats.percent(other)}) by {difference} points"
    elif gain > 0:
        words = f"is {difference} points above {name} ({formats.percent(other)})"
    elif gain == 0:
        words = f"equals {name} ({formats.percent(other)})"
    else:
        words = f"did not beat {name} ({formats.percent(other)}): it is {difference} points below"
    if interval is None:
        return f"{words}; significance unknown, since the number of test examples is"
    low, high = interval
    if gain and low <= 0 <= high:
        words += (
            f", not significant on {formats.integer(rows)} test examples (95 % interval of the difference: "
            f"{formats.points(low)} to {formats.points(high)} points)"
        )
    below = sum((test.number("accuracy") or 0.0) <= other for test in tests)
    if gain > 0 and below:
        words += f"; {below} of {len(tests)} trainings are not above it"
    return words


def _circumstances(records: Sequence[RunRecord]) -> str:
    """`` on TEXT, each within BUDGET``, as far as it is known and the same for all."""
    data, budgets = {_data(record) for record in records}, {_budget(record) for record in records}
    words = ""
    if len(data) == 1 and (text := data.pop()):
        words += f" on {text}"
    if len(budgets) == 1 and (budget := budgets.pop()):
        words += f", {'each ' if len(records) > 1 else ''}with a budget of {budget}"
    elif len(budgets) > 1:
        words += ", with different budgets"
    return words


def _data(record: RunRecord) -> str | None:
    data = as_tree(record.config.get("data"))
    path = data.get("corpus") or data.get("train")
    if not path or not isinstance(path, (str, list)):
        return None
    corpus = record.result.corpus
    if corpus is None or corpus.documents is None:
        return formats.text(path)
    size = f"{formats.integer(corpus.documents)} documents, {formats.count(corpus.tokens)} tokens"
    return f"{formats.text(path)} ({size})"


def _budget(record: RunRecord) -> str | None:
    budget = as_tree(as_tree(record.config.get("train")).get("budget"))
    written = {"time": formats.duration, "tokens": formats.count, "steps": formats.integer, "epochs": formats.text}
    parts = [
        write(value) if key == "time" else f"{write(value)} {key if value != 1 else key[:-1]}"
        for key, write in written.items()
        if (value := formats.number(budget.get(key))) is not None
    ]
    return " and ".join(parts) or None

"""Tables of derived models (adapted, distilled, converted) and of learned layer weights."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from homespun.report import formats
from homespun.report.document import Column, Row, Table, numbers, text, texts, value
from homespun.report.formats import Writer, term_title
from homespun.report.records import RunRecord, Tree, final_losses, is_share
from homespun.results import Adaptation, Change, Shape, TeacherStudent, Timing


def adaptation(record: RunRecord, end: str = "") -> list[Table]:
    """Build the tables of a run that started from a checkpoint; ``end`` is the end of file names."""
    result = record.result.adaptation
    return [] if result is None else [_changes(record, result, end), _moved(result, end), _tensors(result, end)]


def _changes(record: RunRecord, result: Adaptation, end: str) -> Table:
    rows = [*_losses(result, final_losses(record)[1]), _change("vocabulary", result.vocabulary, formats.integer)]
    note = "Losses before training are those of the changed model, not of the checkpoint."
    if new := result.vocabulary.number("new_words") if result.vocabulary else None:
        note += f" New words: {formats.integer(new)}; the tensors below have their initial values."
    if result.tokens_per_word:
        rows.append(_change("tokens per word", result.tokens_per_word, formats.loss))
        note += " Words are separated by white space: in a script without spaces, such as Japanese, a word is a clause."
    rows += _shape(result, " of the encoder" if result.decoder else "")
    rows += _shape(result.decoder, " of the decoder") if result.decoder else []
    columns = (*texts(""), Column("before"), Column("after"))
    title = f"{record.name}, from {formats.text(result.start_from)}"
    return Table(f"adaptation{end}", title, columns, tuple(rows), note)


def _losses(result: Adaptation, after: Mapping[str, float]) -> list[Row]:
    before = {"loss": result.loss, **result.losses}
    terms = [term for term in before if term != "loss" and not is_share(term)]
    rows: list[Row] = []
    # a single term is the total loss
    for term in (term for term in before if len(terms) > 1 or term not in terms):
        write = formats.percent if is_share(term) else formats.loss
        pair = Change(before=before[term], after=after.get(term))
        rows.append(_change(f"held-out {term_title(term)}, before and after training", pair, write))
    return rows


def _shape(result: Shape, of: str) -> list[Row]:
    return [
        _change(f"layers{of}", result.num_hidden_layers, formats.integer),
        _change(f"longest input{of}", result.max_position_embeddings, formats.integer),
        _change(f"attention{of}", result.attention, formats.text),
    ]


def _change(label: str, pair: Change | None, write: Writer) -> Row:
    return label, write(pair and pair.before), write(pair and pair.after)


def _moved(result: Adaptation, end: str) -> Table:
    return Table.of(
        f"moved{end}",
        "Change of the hidden states",
        result.moved,
        text("stack", lambda row: row.get("stack")),
        value("tokens", lambda row: row.get("tokens"), formats.integer),
        value("pieces", lambda row: row.get("pieces"), formats.integer),
        value("mean cosine", lambda row: row.get("cosine"), formats.share),
        value("relative distance", lambda row: row.get("relative_distance"), formats.share),
        value("rows", lambda row: row.get("rows"), formats.integer),
        note="Hidden states of held-out rows compared with the checkpoint's, before training. "
        "Pieces: the number into which longer texts were split for the checkpoint.",
        sparse=True,
    )


def _tensors(result: Adaptation, end: str) -> Table:
    tensors = result.tensors
    found = [("changed", name, how) for name, how in tensors.changed.items()]
    found += [("initialized", name, "") for name in tensors.fresh] + [("unused", name, "") for name in tensors.left]
    counts = Counter(tuple(re.sub(r"layers\.\d+\.", "layers.*.", name) for name in row) for row in found)
    rows = (("copied", "unchanged", "", tensors.copied), *((*row, count) for row, count in counts.items()))
    columns = (*texts("tensors", "which", "how"), *numbers(formats.integer, "number"))
    note = "Initialized: not in the checkpoint. Unused: only in the checkpoint. A star stands for any layer."
    return Table(f"tensors{end}", "Origin of the tensors", columns, rows, note)


_SHARES = ("accuracy", "macro_f1", "micro_f1", "weighted_f1", "roc_auc", "mlm_accuracy")


def distillation(record: RunRecord, end: str = "") -> list[Table]:
    """Build the table of a run with a teacher; ``end`` is the end of its file name."""
    result = record.result.distillation
    if result is None:
        return []
    rows = [
        _pair("parameters", result.parameters, formats.count, _smaller),
        _pair("weights", result.bytes, formats.memory, _smaller),
        *map(_speed, result.speed),
        *(_quality(name, pair) for name, pair in (result.quality or {}).items()),
    ]
    columns = (*texts(""), Column("teacher"), Column("student"), *texts("student against teacher"))
    note = (
        "Timed alternately on the same random tokens. For comparison: DistilBERT is 40 % smaller and 60 % faster than "
        "BERT and keeps 97 % of its quality (Sanh et al. 2019)."
    )
    if layers := result.layers:
        note = f"The student started from layers {', '.join(map(str, layers))} of its teacher, counted from 0. {note}"
    if why := result.quality_why:
        note = f"{note} Quality was not compared: {why}."
    return [Table(f"distillation{end}", f"{record.name}, student of {result.teacher}", columns, tuple(rows), note)]


def _pair(label: str, pair: TeacherStudent | None, write: Writer, compare: Callable[[float, float], str]) -> Row:
    teacher, student = (pair.teacher, pair.student) if pair else (None, None)
    against = compare(teacher, student) if teacher and student is not None else ""
    if pair is None or pair.std is None:
        return label, write(teacher), write(student), against
    deviation = 100 * pair.std if write is formats.percent else pair.std
    return label, write(teacher), f"{write(student)} ± {deviation:.2g}", against


def _smaller(teacher: float, student: float) -> str:
    share = 1 - student / teacher
    return f"{abs(share):.0%} {'smaller' if share >= 0 else 'larger'}"


def _speed(row: Timing) -> Row:
    size, length = row.batch_size, formats.integer(row.length)
    if size == 1:
        return _pair(f"latency of a text of {length} tokens", row, formats.step_seconds, _faster)
    teacher, student = (1 / seconds if seconds else None for seconds in (row.teacher, row.student))
    rates = TeacherStudent(teacher=teacher, student=student)
    label = f"texts a second, {size} of {length} tokens at a time"
    return _pair(label, rates, formats.amount, lambda teacher, student: _faster(student, teacher))


def _faster(teacher: float, student: float) -> str:
    return f"{teacher / student:.2f} times as fast" if student else ""


def _quality(name: str, pair: TeacherStudent) -> Row:
    title = name.replace("_", " ")
    if name in _SHARES:
        return _pair(title, pair, formats.percent, lambda teacher, student: f"{student / teacher:.1%} kept")
    return _pair(title, pair, formats.loss, lambda teacher, student: f"{student - teacher:+.3f}")


_NUMBER = r"(?<=\.)\d+(?=\.|$)"


def conversion_tables(report: Mapping[str, Tree]) -> list[Table]:
    """Build tables of mapped, dropped and new tensors; layers share a row, and so do a weight and its bias."""
    mapped = weights_and_biases(by_layers((name, *names) for name, names in report["mapped"].items()))
    rows: tuple[Row, ...] = tuple((names[0], " + ".join(names[1:]), count) for names, count in mapped)
    tables = [Table("mapped", "Converted tensors", (*texts("from", "to"), Column("tensors")), rows)]
    for key, title in (("dropped", "Dropped"), ("new", "Newly initialized")):
        rows = tuple((*row, count) for row, count in by_layers(report[key].items()))
        tables += [Table(key, title, (*texts("tensor", "why"), Column("tensors")), rows)] if rows else []
    return tables


Names = tuple[str, ...]


def by_layers(rows: Iterable[Sequence[str]]) -> list[tuple[Names, int]]:
    """Merge rows of names that differ only in numbers, and count them: ``layers.{0-11}.bias``."""
    groups: dict[Names, list[list[list[int]]]] = {}
    for row in rows:
        shape = tuple(re.sub(_NUMBER, "\0", name) for name in row)
        groups.setdefault(shape, []).append([[int(n) for n in re.findall(_NUMBER, name)] for name in row])
    return [
        (tuple(_filled(name, found) for name, found in zip(shape, zip(*group, strict=True), strict=True)), len(group))
        for shape, group in groups.items()
    ]


def _filled(name: str, numbers: Sequence[Sequence[int]]) -> str:
    for found in zip(*numbers, strict=True):
        span = str(found[0]) if len(set(found)) == 1 else f"{{{min(found)}-{max(found)}}}"
        name = name.replace("\0", span, 1)
    return name


def weights_and_biases(rows: Iterable[tuple[Names, int]]) -> list[tuple[Names, int]]:
    """Merge rows of `by_layers` for a weight and its bias: ``query.{weight,bias}``."""
    groups: dict[Names, list[tuple[str, int]]] = {}
    for names, count in rows:
        ends = {name.rpartition(".")[2] for name in names}
        end = ends.pop() if len(ends) == 1 else ""
        key = tuple(name.removesuffix(end) for name in names)
        groups.setdefault(key if end in ("weight", "bias") else names, []).append((end, count))
    merged = []
    for names, parts in groups.items():
        if len(parts) == 1:
            ending = parts[0][0] if names[0].endswith(".") else ""
        else:
            ending = f"{{{','.join(sorted((end for end, _ in parts), reverse=True))}}}"
        merged.append((tuple(name + ending for name in names), sum(count for _, count in parts)))
    return merged


def layer_weights(records: Sequence[RunRecord]) -> Table:
    """Build a row for each run with a mix of layers: weights of the embeddings and of each layer, and gamma."""
    mixed = [(record.name, mix.weights, mix.gamma) for record in records if (mix := record.result.layers)]
    most = max((len(weights) for _, weights, _ in mixed), default=0)
    columns = (
        *texts("run"),
        *numbers(formats.percent, *("embeddings" if not layer else f"layer {layer}" for layer in range(most))),
        *numbers(formats.share, "gamma"),
    )
    # embeddings narrower than the layers are not in the mix: the weights are of the last layers
    rows = tuple((name, *[None] * (most - len(weights)), *weights, gamma) for name, weights, gamma in mixed)
    note = "Learned weights of the layers, which sum to 1; gamma multiplies the weighted sum."
    return Table("layers", "Layer weights", columns, rows, note)

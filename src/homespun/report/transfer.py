"""Tables of models made from another one (adapted, distilled, converted) and of learned layer weights."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from homespun.report import formats
from homespun.report.formats import term_title
from homespun.report.records import RunRecord, Tree, final_losses, is_share
from homespun.report.table import Column, Row, Table, Writer, numbers, texts
from homespun.results import Adaptation, Change, Shape, TeacherStudent, Timing


def adaptation(record: RunRecord, end: str = "") -> list[Table]:
    """The tables of one run; none if it did not start from a checkpoint.

    Args:
        record: the run.
        end: of file names.
    """
    result = record.result.adaptation
    if result is None:
        return []
    tables = [_changes(record, result, end), _moved(result, end), _tensors(result, end)]
    return [table for table in tables if table.rows]


def _changes(record: RunRecord, result: Adaptation, end: str) -> Table:
    rows = [*_losses(result, final_losses(record)[1]), _change("vocabulary", result.vocabulary, formats.integer)]
    note = "Losses before training are those of the changed model, not of the checkpoint."
    new = result.vocabulary.number("new_words") if result.vocabulary else None
    if new:
        note += f" {formats.integer(new)} words are new; the tensors below have their initial values."
    if result.tokens_per_word:
        rows.append(_change("tokens per word", result.tokens_per_word, formats.loss))
        note += " Words are separated by white space: in a script without spaces, such as Japanese, a word is a clause."
    rows += _shape(result, " of the encoder" if result.decoder else "")
    if result.decoder:
        rows += _shape(result.decoder, " of the decoder")
    columns = (*texts(""), Column("before"), Column("after"))
    source = formats.text(result.start_from)
    return Table(f"adaptation{end}", f"{record.name}, from {source}", columns, tuple(rows), note)


def _losses(result: Adaptation, after: Mapping[str, float]) -> list[tuple[str, str, str]]:
    before = {"loss": result.loss, **result.losses}
    terms = [term for term in before if term != "loss" and not is_share(term)]
    # a single term is the total loss
    shown = [term for term in before if len(terms) > 1 or term not in terms]
    return [
        _change(
            f"held-out {term_title(term)}, before and after training",
            Change(before=before[term], after=after.get(term)),
            formats.percent if is_share(term) else formats.loss,
        )
        for term in shown
    ]


def _shape(result: Shape, of: str) -> list[tuple[str, str, str]]:
    sizes = {"num_hidden_layers": "layers", "max_position_embeddings": "longest input"}
    rows = [_change(f"{label}{of}", getattr(result, key), formats.integer) for key, label in sizes.items()]
    return [*rows, _change(f"attention{of}", result.attention, formats.text)]


def _change(label: str, pair: Change | None, write: Writer) -> tuple[str, str, str]:
    return label, write(pair and pair.before), write(pair and pair.after)


def _moved(result: Adaptation, end: str) -> Table:
    columns = (
        *texts("stack"),
        *numbers(formats.integer, "tokens", "pieces"),
        *numbers(formats.share, "mean cosine", "relative distance"),
        *numbers(formats.integer, "rows"),
    )
    keys = ("stack", "tokens", "pieces", "cosine", "relative_distance", "rows")
    rows = tuple(tuple(row.get(key) for key in keys) for row in result.moved)
    note = (
        "Hidden states of held-out rows compared with the checkpoint's, before training. "
        "Pieces: the number into which longer texts were split for the checkpoint."
    )
    return Table(f"moved{end}", "Change of the hidden states", columns, rows, note).without_empty_columns()


def _tensors(result: Adaptation, end: str) -> Table:
    tensors = result.tensors
    rows: list[Row] = [("copied", "unchanged", "", tensors.copied)]
    changed = Counter((_any_layer(name), _any_layer(how)) for name, how in tensors.changed.items())
    rows += [("changed", name, how, count) for (name, how), count in changed.items()]
    for kind, found in (("initialized", tensors.fresh), ("unused", tensors.left)):
        rows += [(kind, name, "", count) for name, count in Counter(map(_any_layer, found)).items()]
    columns = (*texts("tensors", "which", "how"), *numbers(formats.integer, "number"))
    note = "Initialized: not in the checkpoint. Unused: only in the checkpoint. A star stands for any layer."
    return Table(f"tensors{end}", "Origin of the tensors", columns, tuple(rows), note)


def _any_layer(name: str) -> str:
    return re.sub(r"layers\.\d+\.", "layers.*.", name)


_SHARES = ("accuracy", "macro_f1", "micro_f1", "weighted_f1", "roc_auc", "mlm_accuracy")


def distillation(record: RunRecord, end: str = "") -> list[Table]:
    """The table of one run; none without a teacher.

    Args:
        record: the run.
        end: of the file name.
    """
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


def _pair(
    label: str, pair: TeacherStudent | None, write: Writer, compare: Callable[[float, float], str]
) -> tuple[str, str, str, str]:
    teacher, student = (pair.teacher, pair.student) if pair else (None, None)
    against = compare(teacher, student) if teacher and student is not None else ""
    return label, write(teacher), write(student), against


def _smaller(teacher: float, student: float) -> str:
    share = 1 - student / teacher
    return f"{abs(share):.0%} {'smaller' if share >= 0 else 'larger'}"


def _speed(row: Timing) -> tuple[str, str, str, str]:
    size, where = row.batch_size, f"{formats.integer(row.length)} tokens"
    if size == 1:
        return _pair(f"latency of a text of {where}", row, formats.step_seconds, _faster)
    teacher, student = (1 / seconds if seconds else None for seconds in (row.teacher, row.student))
    label = f"texts a second, {size} of {where} at a time"
    return _pair(
        label,
        TeacherStudent(teacher=teacher, student=student),
        formats.amount,
        lambda teacher, student: _faster(student, teacher),
    )


def _faster(teacher: float, student: float) -> str:
    return f"{teacher / student:.2f} times as fast" if student else ""


def _quality(name: str, pair: TeacherStudent) -> tuple[str, str, str, str]:
    if name in _SHARES:
        row = _pair(name.replace("_", " "), pair, formats.percent, lambda t, s: f"{s / t:.1%} kept")
    else:
        row = _pair(name.replace("_", " "), pair, formats.loss, lambda t, s: f"{s - t:+.3f}")
    if (deviation := pair.std) is None:
        return row
    label, teacher, student, against = row
    return label, teacher, f"{student} ± {(100 * deviation if name in _SHARES else deviation):.2g}", against


_NUMBER = r"(?<=\.)\d+(?=\.|$)"


def conversion_tables(report: Mapping[str, Tree]) -> list[Table]:
    """Tables of mapped, dropped and new tensors; layers share a row."""
    mapped = weights_and_biases(by_layers((name, *names) for name, names in report["mapped"].items()))
    tables = [
        Table(
            "mapped",
            "Converted tensors",
            (*texts("from", "to"), Column("tensors")),
            tuple((names[0], " + ".join(names[1:]), count) for names, count in mapped),
        )
    ]
    for key, title in (("dropped", "Dropped"), ("new", "Newly initialized")):
        grouped = by_layers((name, reason) for name, reason in report[key].items())
        if grouped:
            columns = (*texts("tensor", "why"), Column("tensors"))
            tables.append(Table(key, title, columns, tuple((*row, count) for row, count in grouped)))
    return tables


def by_layers(rows: Iterable[Sequence[str]]) -> list[tuple[tuple[str, ...], int]]:
    """Merge rows of names that differ only in numbers, and count them: ``layers.{0-11}.bias``."""
    groups: dict[tuple[str, ...], list[list[list[int]]]] = {}
    for row in rows:
        shape = tuple(re.sub(_NUMBER, "\0", name) for name in row)
        groups.setdefault(shape, []).append([[int(n) for n in re.findall(_NUMBER, name)] for name in row])
    return [
        (
            tuple(_filled(name, [found[index] for found in all_found]) for index, name in enumerate(shape)),
            len(all_found),
        )
        for shape, all_found in groups.items()
    ]


def weights_and_biases(rows: Iterable[tuple[tuple[str, ...], int]]) -> list[tuple[tuple[str, ...], int]]:
    """Merge rows of `by_layers` for a weight and its bias: ``query.{weight,bias}``."""
    groups: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for names, count in rows:
        ends = {name.rpartition(".")[2] for name in names}
        end = ends.pop() if len(ends) == 1 else ""
        key = tuple(name.removesuffix(end) for name in names)
        groups.setdefault(key if end in ("weight", "bias") else names, []).append((end, count))
    merged = []
    for names, parts in groups.items():
        ends_of = [end for end, _ in parts]
        if len(parts) == 1:
            ending = ends_of[0] if names[0].endswith(".") else ""
        else:
            ending = f"{{{','.join(sorted(ends_of, reverse=True))}}}"
        merged.append((tuple(name + ending for name in names), sum(count for _, count in parts)))
    return merged


def _filled(name: str, numbers: Sequence[Sequence[int]]) -> str:
    for few in zip(*numbers, strict=True):
        span = str(few[0]) if len(set(few)) == 1 else f"{{{min(few)}-{max(few)}}}"
        name = name.replace("\0", span, 1)
    return name


def layers_read(records: Sequence[RunRecord]) -> Table | None:
    """A row for each run with a mix of layers: weights of the embeddings and of each layer, and gamma."""
    mixed = [(record.name, mix.weights, mix.gamma) for record in records if (mix := record.result.layers)]
    if not mixed:
        return None
    most = max(len(weights) for _, weights, _ in mixed)
    columns = (
        *texts("run"),
        *numbers(formats.percent, *("embeddings" if not layer else f"layer {layer}" for layer in range(most))),
        *numbers(formats.share, "gamma"),
    )
    # embeddings narrower than the layers are not in the mix: the weights are of the last layers
    rows = tuple((name, *[None] * (most - len(weights)), *weights, gamma) for name, weights, gamma in mixed)
    note = "Learned weights of the layers, which sum to 1; gamma multiplies the weighted sum."
    return Table("layers", "Layer weights", columns, rows, note)

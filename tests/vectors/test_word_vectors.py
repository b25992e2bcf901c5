"""Nearest neighbours, analogies and evaluation lists, by hand."""

from pathlib import Path

import numpy as np
import pytest

from homespun.errors import UserError
from homespun.vectors.evaluation import evaluate_vectors, read_lists
from homespun.vectors.word_vectors import WordVectors, frequent_words, project_2d

# a small world in which differences are meanings: (royal, woman, city)
TABLE = {
    "man": (0, 0, 1),
    "woman": (0, 2, 1),
    "king": (3, 0, 1),
    "queen": (3, 2, 1),
    "prince": (2.7, 0.1, 1),
    "nothing": (0, 0, 0),
    ",": (-1, -1, 5),
}
VECTORS = WordVectors(list(TABLE), np.array(list(TABLE.values()), np.float32))


def test_similar_words_come_by_their_cosine() -> None:
    found = VECTORS.similar("king", 2)
    assert [word for word, _ in found] == ["prince", "queen"]
    given = [np.array(TABLE[word]) for word in ("king", "prince")]
    assert found[0][1] == pytest.approx(given[0] @ given[1] / np.linalg.norm(given[0]) / np.linalg.norm(given[1]))
    assert len(VECTORS.similar("king", 100)) == len(TABLE) - 1
    assert VECTORS.similar("King", 1) == VECTORS.similar("king", 1)


def test_an_analogy_leaves_its_own_words_out() -> None:
    found = VECTORS.analogy("man", "king", "woman", 10)
    assert found[0][0] == "queen"
    assert {word for word, _ in found} == TABLE.keys() - {"man", "king", "woman"}


def test_an_unknown_word_lists_similar_ones() -> None:
    with pytest.raises(UserError, match=r"'quean' .* queen"):
        VECTORS.similar("quean")
    with pytest.raises(UserError, match=r"'xyzzyx' "):
        VECTORS.analogy("man", "xyzzyx", "king")
    with pytest.raises(UserError, match=r"count .*1 "):
        VECTORS.similar("king", 0)


@pytest.mark.parametrize(
    ("words", "values", "message"),
    [
        (["a", "b", "a"], np.ones((3, 2)), "'a' .*two vectors"),
        (["a", "b"], np.ones((3, 2)), "vectors of shape"),
        (["a", "b"], np.array([[1, 2], [3, np.nan]]), "'b' .*finite"),
        ([], np.ones((0, 2)), "no word vectors"),
    ],
)
def test_broken_vectors_are_refused(words: list[str], values: np.ndarray, message: str) -> None:
    with pytest.raises(UserError, match=message):
        WordVectors(words, values.astype(np.float32))


def write(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        (folder / f"{name}.txt").write_text(content, encoding="utf-8")
    return folder


def test_lists_are_scored_by_section_with_what_they_cover(tmp_path: Path) -> None:
    write(
        tmp_path,
        questions=(
            ": family\nMan king woman queen\nman woman king queen\nman king woman prince\n"
            ": far\nman king somewhere nowhere\n"
        ),
        alike="king\tqueen\t9\nking\tprince\t10\nman\tqueen\t3\nking\t,\t1\nking\tunknown\t5\n",
    )
    (tmp_path / "LICENSE.questions").write_text("not a list", encoding="utf-8")
    found = evaluate_vectors(VECTORS, read_lists(tmp_path))
    family = {"questions": 3, "covered": 3, "correct": 2, "accuracy": 2 / 3}
    far = {"questions": 1, "covered": 0, "correct": 0, "accuracy": None}
    total = {"questions": 4, "covered": 3, "correct": 2, "accuracy": 2 / 3}
    assert found["analogies"] == {"questions": {**total, "sections": {"family": family, "far": far}}}
    assert found["similarities"]["alike"] == {"pairs": 5, "covered": 4, "spearman": pytest.approx(1.0)}
    nothing = WordVectors(["x", "y"], np.ones((2, 2), np.float32))
    assert evaluate_vectors(nothing, read_lists(tmp_path))["similarities"]["alike"]["spearman"] is None


def test_scores_are_gensims(tmp_path: Path) -> None:
    models = pytest.importorskip("gensim.models")
    draw = np.random.default_rng(5)
    words = [f"w{number}" for number in range(61)]
    vectors = WordVectors(words, draw.standard_normal((61, 7)).astype(np.float32))
    theirs = models.KeyedVectors(7)
    theirs.add_vectors(words, vectors.vectors)
    fours = [draw.choice(61, 4, replace=False) for _ in range(301)]
    for place in range(0, 301, 5):  # some that are right
        a, b, c, _ = (words[i] for i in fours[place])
        fours[place][3] = words.index(vectors.analogy(a, b, c, 1)[0][0])
    lines = "".join(" ".join(f"w{i}" for i in four) + "\n" for four in fours)
    pairs = "".join(f"w{a}\tw{b}\t{draw.random():.3f}\n" for a, b in draw.integers(0, 61, (97, 2)))
    write(tmp_path, questions=": all\n" + lines, alike=pairs)
    found = evaluate_vectors(vectors, read_lists(tmp_path))
    score, _ = theirs.evaluate_word_analogies(str(tmp_path / "questions.txt"))
    assert found["analogies"]["questions"]["accuracy"] == pytest.approx(score)
    assert score > 0.19
    _, spearman, _ = theirs.evaluate_word_pairs(str(tmp_path / "alike.txt"))
    assert found["similarities"]["alike"]["spearman"] == pytest.approx(spearman.statistic)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("a b 1\na b\n", "line 2: .*number"),
        ("a b c\n", "line 1: .*number"),
        (": s\na b c d\na b c\n", "line 3: 3 "),
    ],
)
def test_broken_lists_are_one_line(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_lists(write(tmp_path, broken=content))


def test_two_lists_of_one_name_are_one_line(tmp_path: Path) -> None:
    write(tmp_path, pairs="a b 1\n", zoo="a b 1\n")
    (tmp_path / "pairs.csv").write_text("a,b,1\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"pairs\.(txt|csv) and pairs\.(csv|txt) "):
        read_lists(tmp_path)


def test_folders_without_lists_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no \.txt"):
        read_lists(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        read_lists(tmp_path / "nowhere")


@pytest.mark.parametrize("how", ["pca", "tsne"])
def test_a_plane_is_the_same_for_a_seed(how: str) -> None:
    words = ["man", "woman", "king", "queen"]
    first, again = (project_2d(VECTORS, words, method=how, seed=2) for _ in range(2))
    assert first.shape == (4, 2)
    assert np.array_equal(first, again)
    with pytest.raises(UserError, match=r"three words.* 2: man, king"):
        project_2d(VECTORS, ["man", "king", "man"], method=how, seed=0)
    assert frequent_words(VECTORS, 100) == [word for word in TABLE if word != ","]

"""ListOps: nested lists of digits to be worked out, drawn without end by the rules of the Long Range Arena."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from homespun.errors import UserError

OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MAX": max,
    "[MIN": min,
    "[MED": lambda values: int(median(values)),  # of an even number of values the mean of the middle two, cut
    "[SM": lambda values: sum(values) % 10,
}
END = "]"
SYMBOLS = (*OPERATORS, END, *map(str, range(10)))
"""Every token that stands in an expression."""

_NESTED = 0.25  # how often an argument is a list
_NAMES = tuple(OPERATORS)
_PATIENCE = 200_000  # drawn expressions without a fitting one, after which there is none to hope for


class ListOps:
    """Expressions such as ``[MAX 2 9 [MIN 4 7 ] 0 ]`` and their values (Nangia and Bowman 2018; Tay et al. 2021).

    The rules are those of the arena's own generator: an argument is a list with probability 1/4 and otherwise a digit,
    a list has 2 to ``max_arguments`` arguments, lists are nested so that the innermost digit lies at most ``max_depth``
    deep (the outermost list is at depth 1), and expressions with more than ``min_length`` and fewer than
    ``max_length`` tokens are kept. Tokens are operators, digits and closing brackets. The arena's files write round
    brackets around each argument besides, which say nothing that these do not.

    Raises:
        UserError: sizes by which there is no expression.
    """

    def __init__(
        self, *, seed: int, max_depth: int = 10, max_arguments: int = 10, min_length: int = 500, max_length: int = 2000
    ) -> None:
        if max_depth < 2 or max_arguments < 2:
            raise UserError(f"max_depth={max_depth} and max_arguments={max_arguments} must both be 2 or more")
        longest = _longest(max_depth, max_arguments, max_length)
        if min_length < 0 or max_length - min_length < 2 or min_length >= longest:
            raise UserError(
                f"no expression of max_depth={max_depth} and max_arguments={max_arguments} has more than "
                f"min_length={min_length} and fewer than max_length={max_length} tokens; the longest has {longest}"
            )
        self.seed = seed
        self.max_depth = max_depth
        self.max_arguments = max_arguments
        self.min_length = min_length
        self.max_length = max_length

    def expression(self, index: int) -> list[str]:
        """The tokens of expression ``index``, a function of the seed and this number alone.

        Raises:
            UserError: expressions of the wanted length are so rare that none was found.
        """
        draw = random.Random(f"{self.seed}/{index}").random
        for _ in range(_PATIENCE):
            tokens: list[str] = []
            if self._fill(tokens, 1, draw) and len(tokens) > self.min_length:
                return tokens
        raise UserError(
            f"among {_PATIENCE:,} expressions none had more than min_length={self.min_length} and fewer than "
            f"max_length={self.max_length} tokens; widen the two, or allow greater max_depth or max_arguments"
        )

    def distinct(self) -> Iterator[tuple[str, int]]:
        """Expressions, tokens separated by spaces, with their values: a stream in which none comes twice.

        What is held of each is a digest of 16 bytes.

        Raises:
            UserError: as `expression`; or there are no more that differ.
        """
        seen: set[bytes] = set()
        index = repeated = 0
        while True:
            tokens = self.expression(index)
            index += 1
            text = " ".join(tokens)
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if digest in seen:
                repeated += 1
                if repeated > 1000:
                    raise UserError(
                        f"after {len(seen):,} expressions hardly any are new; ask for fewer rows, or allow greater "
                        f"max_depth, max_arguments or max_length"
                    )
                continue
            seen.add(digest)
            repeated = 0
            yield text, value(tokens)

    def _fill(self, tokens: list[str], depth: int, draw: Callable[[], float]) -> bool:
        """Append one argument; ``False`` as soon as the whole is too long."""
        if depth >= self.max_depth or draw() > _NESTED:
            tokens.append(str(int(draw() * 10)))
            return len(tokens) < self.max_length
        tokens.append(_NAMES[int(draw() * len(_NAMES))])
        for _ in range(2 + int(draw() * (self.max_arguments - 1))):
            if not self._fill(tokens, depth + 1, draw):
                return False
        tokens.append(END)
        return len(tokens) < self.max_length


def value(tokens: Sequence[str]) -> int:
    """What an expression comes to, 0 to 9.

    Raises:
        UserError: it is not one whole expression.
    """
    stack: list[list[int]] = [[]]
    names: list[str] = []
    for token in tokens:
        if token in OPERATORS:
            names.append(token)
            stack.append([])
        elif token == END and names and stack[-1]:
            values = stack.pop()
            stack[-1].append(OPERATORS[names.pop()](values))
        elif token in SYMBOLS and token != END:
            stack[-1].append(int(token))
        else:
            raise UserError(f"{token!r} has no place in a ListOps expression; its tokens are {' '.join(SYMBOLS)}")
    if names or len(stack[0]) != 1:
        raise UserError("a ListOps expression is one digit or one list, closed by as many brackets as were opened")
    return stack[0][0]


def _longest(max_depth: int, max_arguments: int, limit: int) -> int:
    """Tokens of the longest expression there can be, or ``limit - 1`` where that is less."""
    longest = 1
    for _ in range(max_depth - 1):
        longest = min(2 + max_arguments * longest, limit - 1)
    return longest
